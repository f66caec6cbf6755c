//! Which headers are read and which are refused, one fault each.

use checkpoint::{Header, HeaderFault, MAX_HEADER_BYTES, header_len, parse_header};
use tensor::{Dtype, Shape};

fn entry(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

/// A header with one tensor of 16 bytes.
fn one(name: &str) -> String {
    format!(r#"{{"{name}":{}}}"#, entry("F32", "[2,2]", "[0,16]"))
}

#[track_caller]
fn accepts(json: &str, data_bytes: u64) -> Header {
    parse_header(json.as_bytes(), data_bytes).expect("a valid header")
}

#[track_caller]
fn refuses(json: &str, data_bytes: u64, words: &str) {
    let fault = parse_header(json.as_bytes(), data_bytes).expect_err("a header with a fault");
    let message = fault.to_string();
    assert!(message.contains(words), "`{words}` is not in: {message}");
}

#[test]
fn an_entry_is_read_with_its_place() {
    let header = accepts(&one("a"), 16);
    let tensor = &header.entries[0];
    assert_eq!(tensor.meta.name, "a");
    assert_eq!(tensor.meta.dtype, Dtype::F32);
    assert_eq!(tensor.meta.shape, Shape::new(&[2, 2]));
    assert_eq!((tensor.begin, tensor.end), (0, 16));
}

#[test]
fn unusual_but_valid_headers_are_read() {
    assert!(accepts("{}", 0).entries.is_empty());
    assert!(accepts(r#"{"__metadata__":{}}   "#, 0).entries.is_empty());
    let metadata = accepts(r#"{"__metadata__":{"b":"x\ny","a":""}}"#, 0).metadata;
    assert_eq!(metadata[1], ("b".to_owned(), "x\ny".to_owned()));
    accepts(
        &format!("{{ \"s\" :\n\t{} }}", entry("F32", "[]", "[0,4]")),
        4,
    );
    accepts(
        &format!(r#"{{"z":{}}}"#, entry("F32", "[0,4096]", "[0,0]")),
        0,
    );
    accepts(
        &format!(r#"{{"é\u6743":{}}}"#, entry("F4", "[4]", "[0,2]")),
        2,
    );
}

#[test]
fn tensors_are_put_in_the_order_of_their_bytes_however_aligned() {
    let header = accepts(
        &format!(
            r#"{{"b":{},"z":{},"a":{}}}"#,
            entry("F32", "[1]", "[3,7]"),
            entry("I64", "[0]", "[3,3]"),
            entry("U8", "[3]", "[0,3]"),
        ),
        7,
    );
    let names: Vec<_> = header
        .entries
        .iter()
        .map(|tensor| tensor.meta.name.as_str())
        .collect();
    assert_eq!(names, ["a", "z", "b"]);
}

#[test]
fn all_dtypes_are_read() {
    for dtype in Dtype::all() {
        let bytes = dtype.bits();
        let json = format!(
            r#"{{"t":{}}}"#,
            entry(dtype.name(), "[8]", &format!("[0,{bytes}]"))
        );
        assert_eq!(accepts(&json, bytes).entries[0].meta.dtype, dtype);
    }
}

#[test]
fn a_lying_length_is_refused_before_anything_is_read() {
    let too_large = |claimed_bytes| Err(HeaderFault::TooLarge { claimed_bytes });
    assert_eq!(
        header_len(u64::MAX.to_le_bytes(), u64::MAX),
        too_large(u64::MAX)
    );
    let over = MAX_HEADER_BYTES + 1;
    assert_eq!(header_len(over.to_le_bytes(), u64::MAX), too_large(over));
    assert_eq!(
        header_len(MAX_HEADER_BYTES.to_le_bytes(), u64::MAX),
        Ok(MAX_HEADER_BYTES)
    );
    let truncated = HeaderFault::Truncated {
        file_bytes: 20,
        needed_bytes: 21,
    };
    assert_eq!(header_len(13_u64.to_le_bytes(), 20), Err(truncated));
}

#[test]
fn only_spaces_may_follow_the_object_and_nothing_may_precede_it() {
    for broken in [
        " {}",
        "\u{feff}{}",
        "\n{}",
        "{}\n",
        "{}\t",
        "{}\0",
        "[1,2]",
        "",
        "   ",
        "{} x",
        "{}[]",
    ] {
        refuses(broken, 0, "followed by spaces");
    }
    refuses("{}{}", 0, "not the JSON");
    assert!(matches!(
        parse_header(b"{\"\xff\":1}", 0),
        Err(HeaderFault::NotUtf8 { at: 2 })
    ));
}

#[test]
fn duplicates_are_refused_at_every_level_by_their_decoded_names() {
    let e = entry("F32", "[4]", "[0,16]");
    refuses(
        &format!(r#"{{"a":{e},"a":{e}}}"#),
        16,
        "tensor `a` appears twice",
    );
    refuses(
        &format!(r#"{{"a":{e},"\u0061":{e}}}"#),
        16,
        "tensor `a` appears twice",
    );
    refuses(
        r#"{"__metadata__":{"k":"1","\u006b":"2"}}"#,
        0,
        "key `k` appears twice",
    );
    refuses(
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        0,
        "key `__metadata__` appears twice",
    );
    let field = r#"{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#;
    refuses(field, 1, "field `shape` twice");
}

#[test]
fn an_entry_is_an_object_with_three_fields_and_no_other() {
    refuses(r#"{"a":["F32",[1],[0,4]]}"#, 4, "not the JSON");
    refuses(r#"{"a":null}"#, 0, "not the JSON");
    refuses(
        r#"{"a":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    );
    refuses(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#,
        4,
        "unknown field `x`",
    );
    refuses(
        r#"{"a":{"shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "no field `dtype`",
    );
    refuses(
        r#"{"a":{"dtype":"F32","data_offsets":[0,4]}}"#,
        4,
        "no field `shape`",
    );
    refuses(
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        4,
        "no field `data_offsets`",
    );
}

#[test]
fn metadata_is_a_map_of_strings() {
    for value in [
        "null",
        "[]",
        r#""x""#,
        r#"{"a":1}"#,
        r#"{"a":null}"#,
        r#"{"a":{}}"#,
    ] {
        refuses(&format!(r#"{{"__metadata__":{value}}}"#), 0, "not the JSON");
    }
}

#[test]
fn names_that_hide_something_are_refused() {
    for name in ["", r"a\u0000", r"a\nb", r"\u001b[2J", r"\u007f", r"\u0085"] {
        refuses(&one(name), 16, "empty or has control characters");
    }
    refuses(&one(r"\ud800"), 16, "not the JSON");
}

#[test]
fn numbers_are_whole_and_plain() {
    for offsets in [
        "[0.0,16]",
        "[0,1.6e1]",
        "[-0,16]",
        "[00,16]",
        r#"["0",16]"#,
        "[-16,0]",
        "[0]",
        "[0,16,16]",
        "[0,18446744073709551616]",
        "16",
    ] {
        refuses(
            &format!(r#"{{"a":{}}}"#, entry("F32", "[4]", offsets)),
            16,
            "not the JSON",
        );
    }
    for shape in ["[4.0]", "[-4]", "4", "[[4]]", r#"["4"]"#, "null"] {
        refuses(
            &format!(r#"{{"a":{}}}"#, entry("F32", shape, "[0,16]")),
            16,
            "not the JSON",
        );
    }
}

#[test]
fn sizes_that_overflow_or_break_a_byte_are_refused() {
    for shape in [
        "[4294967296,4294967296]",
        "[18446744073709551615,2,0]",
        "[0,18446744073709551615]",
        "[2305843009213693952]",
    ] {
        let json = format!(r#"{{"a":{}}}"#, entry("F32", shape, "[0,0]"));
        refuses(&json, 0, "not a whole number of bytes in 64 bits");
    }
    refuses(
        &format!(r#"{{"a":{}}}"#, entry("F4", "[3]", "[0,2]")),
        2,
        "whole number of bytes",
    );
    let rank = |rank| {
        let ones = vec!["1"; rank].join(",");
        format!(r#"{{"a":{}}}"#, entry("U8", &format!("[{ones}]"), "[0,1]"))
    };
    accepts(&rank(64), 1);
    refuses(&rank(65), 1, "more than 64 dimensions");
}

#[test]
fn dtypes_are_the_formats_and_in_its_case() {
    for dtype in ["f32", "", "Q4_9", "float32", "BF16 "] {
        refuses(
            &format!(r#"{{"a":{}}}"#, entry(dtype, "[4]", "[0,16]")),
            16,
            "unknown dtype",
        );
    }
}

#[test]
fn tensors_tile_the_data_exactly() {
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{},"b":{}}}"#,
            entry("U8", "[4]", a),
            entry("U8", "[4]", b)
        )
    };
    accepts(&two("[4,8]", "[0,4]"), 8);
    refuses(&two("[0,4]", "[5,9]"), 9, "`b` begins at 5");
    refuses(&two("[0,4]", "[3,7]"), 7, "`b` begins at 3");
    refuses(&two("[0,4]", "[0,4]"), 4, "`b` begins at 0");
    refuses(&two("[1,5]", "[5,9]"), 9, "`a` begins at 1");
    refuses(&two("[0,4]", "[8,4]"), 8, "need 4 bytes");
    refuses(&two("[0,4]", "[4,9]"), 9, "need 4 bytes");
    let json = two("[0,4]", "[4,8]");
    let header_bytes = 8 + json.len();
    refuses(
        &json,
        9,
        &format!(
            "take {} bytes, the file has {}",
            header_bytes + 8,
            header_bytes + 9
        ),
    );
    refuses(
        &json,
        7,
        &format!(
            "take {} bytes, the file has {}",
            header_bytes + 8,
            header_bytes + 7
        ),
    );
}

#[test]
fn deep_nesting_is_refused() {
    let deep = format!(r#"{{"a":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
    refuses(&deep, 0, "not the JSON");
}
