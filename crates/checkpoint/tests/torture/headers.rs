//! Safetensors files: what can be wrong or odd in a length, a header and a tiling.

use super::cases::{Case, Kind};

/// Name, header, bytes of data, what the message says.
type Row = (&'static str, &'static str, usize, &'static str);

/// Both readers agree on these. `F` stands for a dtype, a shape and offsets of 16
/// bytes: `"dtype":"F32","shape":[2,2],"data_offsets":[0,16]`.
const AGREED: &[Row] = &[
    ("plain", r#"{"a":{F}}"#, 16, ""),
    ("nothing", "{}", 0, ""),
    (
        "metadata_only",
        r#"{"__metadata__":{"format":"pt"}}"#,
        0,
        "",
    ),
    ("metadata_empty", r#"{"__metadata__":{},"a":{F}}"#, 16, ""),
    (
        "metadata_control_characters",
        r#"{"__metadata__":{"a\n":"\u0000"},"a":{F}}"#,
        16,
        "",
    ),
    ("padded", "{\"a\":{F}}          ", 16, ""),
    ("spaces_inside", "{ \"a\" :\n\t{ F } }", 16, ""),
    ("name_unicode", r#"{"模型.é":{F}}"#, 16, ""),
    ("name_escaped", r#"{"\u0061\ud83d\ude00":{F}}"#, 16, ""),
    ("name_quote", r#"{"a\"b\\":{F}}"#, 16, ""),
    (
        "scalar",
        r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#,
        4,
        "",
    ),
    (
        "zero_dimension",
        r#"{"a":{"dtype":"F32","shape":[0,4096],"data_offsets":[0,0]}}"#,
        0,
        "",
    ),
    (
        "zero_dimension_between",
        r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"F32","shape":[0],"data_offsets":[3,3]},"c":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}"#,
        4,
        "",
    ),
    (
        "odd_alignment",
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}"#,
        5,
        "",
    ),
    (
        "order_differs",
        r#"{"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]},"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#,
        5,
        "",
    ),
    (
        "fields_in_other_order",
        r#"{"a":{"data_offsets":[0,16],"shape":[2,2],"dtype":"F32"}}"#,
        16,
        "",
    ),
    (
        "f4_pair",
        r#"{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}"#,
        2,
        "",
    ),
    (
        "f6_four",
        r#"{"a":{"dtype":"F6_E3M2","shape":[4],"data_offsets":[0,3]}}"#,
        3,
        "",
    ),
    ("not_json", "{\"a\":", 0, "not a JSON object"),
    ("array", "[1,2]", 0, "not a JSON object"),
    ("text", "\"{}\"", 0, "not a JSON object"),
    ("no_json", "", 0, "not a JSON object"),
    ("spaces_only", "    ", 0, "not a JSON object"),
    ("byte_order_mark", "\u{feff}{}", 0, "not a JSON object"),
    ("nul_padding", "{}\0\0", 0, "not a JSON object"),
    ("two_objects", "{}{}", 0, "not the JSON"),
    ("text_behind", "{} x }", 0, "not the JSON"),
    ("comment", "{/*a*/}", 0, "not the JSON"),
    ("trailing_comma", r#"{"a":{F},}"#, 16, "not the JSON"),
    ("single_quotes", "{'a':{F}}", 16, "not the JSON"),
    (
        "name_lone_surrogate",
        r#"{"\ud800":{F}}"#,
        16,
        "not the JSON",
    ),
    ("nested_deep", r#"{"a":NEST}"#, 0, "not the JSON"),
    (
        "duplicate_dtype",
        r#"{"a":{"dtype":"F32",F}}"#,
        16,
        "has field `dtype` twice",
    ),
    (
        "duplicate_shape",
        r#"{"a":{"shape":[4],F}}"#,
        16,
        "has field `shape` twice",
    ),
    (
        "duplicate_offsets",
        r#"{"a":{"data_offsets":[0,16],F}}"#,
        16,
        "has field `data_offsets` twice",
    ),
    (
        "duplicate_metadata",
        r#"{"__metadata__":{},"__metadata__":{}}"#,
        0,
        "`__metadata__` appears twice",
    ),
    (
        "metadata_number",
        r#"{"__metadata__":{"a":1}}"#,
        0,
        "not the JSON",
    ),
    (
        "metadata_nested",
        r#"{"__metadata__":{"a":{}}}"#,
        0,
        "not the JSON",
    ),
    ("metadata_list", r#"{"__metadata__":[]}"#, 0, "not the JSON"),
    (
        "metadata_tensor",
        r#"{"__metadata__":{F}}"#,
        16,
        "not the JSON",
    ),
    ("entry_null", r#"{"a":null}"#, 0, "not the JSON"),
    ("entry_text", r#"{"a":"F32"}"#, 0, "not the JSON"),
    (
        "without_dtype",
        r#"{"a":{"shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "no field `dtype`",
    ),
    (
        "without_shape",
        r#"{"a":{"dtype":"F32","data_offsets":[0,4]}}"#,
        4,
        "no field `shape`",
    ),
    (
        "without_offsets",
        r#"{"a":{"dtype":"F32","shape":[1]}}"#,
        4,
        "no field `data_offsets`",
    ),
    (
        "dtype_unknown",
        r#"{"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "unknown dtype `F33`",
    ),
    (
        "dtype_lower_case",
        r#"{"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "unknown dtype `f32`",
    ),
    (
        "dtype_empty",
        r#"{"a":{"dtype":"","shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "unknown dtype ``",
    ),
    (
        "dtype_null",
        r#"{"a":{"dtype":null,"shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "dtype_number",
        r#"{"a":{"dtype":3,"shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "shape_null",
        r#"{"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "shape_negative",
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "shape_float",
        r#"{"a":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "shape_text",
        r#"{"a":{"dtype":"F32","shape":["1"],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "shape_over_64_bits",
        r#"{"a":{"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
    ),
    (
        "shape_overflow",
        r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}"#,
        0,
        "not a whole number of bytes",
    ),
    (
        "shape_overflow_in_bits",
        r#"{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}}"#,
        0,
        "not a whole number of bytes",
    ),
    (
        "shape_overflow_then_zero",
        r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2,0],"data_offsets":[0,0]}}"#,
        0,
        "not a whole number of bytes",
    ),
    (
        "f4_half_byte",
        r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#,
        2,
        "not a whole number of bytes",
    ),
    (
        "f6_broken_byte",
        r#"{"a":{"dtype":"F6_E2M3","shape":[3],"data_offsets":[0,3]}}"#,
        3,
        "not a whole number of bytes",
    ),
    (
        "offsets_one",
        r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}}"#,
        0,
        "not the JSON",
    ),
    (
        "offsets_three",
        r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}}"#,
        0,
        "not the JSON",
    ),
    (
        "offsets_negative",
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}"#,
        1,
        "not the JSON",
    ),
    (
        "offsets_minus_zero",
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[-0,1]}}"#,
        1,
        "not the JSON",
    ),
    (
        "offsets_float",
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0.0,1.0]}}"#,
        1,
        "not the JSON",
    ),
    (
        "offsets_exponent",
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4e0]}}"#,
        4,
        "not the JSON",
    ),
    (
        "offsets_leading_zero",
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,01]}}"#,
        1,
        "not the JSON",
    ),
    (
        "offsets_text",
        r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":["0","1"]}}"#,
        1,
        "not the JSON",
    ),
    (
        "offsets_reversed",
        r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#,
        4,
        "its offsets are [4, 0]",
    ),
    (
        "offsets_past_the_end",
        r#"{"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}"#,
        4,
        "the file has",
    ),
    (
        "offsets_largest",
        r#"{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,18446744073709551615]}}"#,
        4,
        "not a whole number of bytes",
    ),
    (
        "size_disagrees",
        r#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,12]}}"#,
        12,
        "shape and dtype need 16 bytes",
    ),
    (
        "hole",
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}"#,
        5,
        "`b` begins at 3",
    ),
    (
        "hole_at_the_start",
        r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
        3,
        "`a` begins at 1",
    ),
    (
        "overlap",
        r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}}"#,
        5,
        "`b` begins at 2",
    ),
    (
        "alias",
        r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#,
        3,
        "`b` begins at 0",
    ),
    ("data_longer", r#"{"a":{F}}"#, 17, "the file has"),
    ("data_shorter", r#"{"a":{F}}"#, 15, "the file has"),
    ("data_without_tensors", "{}", 1, "the file has"),
];

/// Name, header, bytes of data, what the message says, the point.
type StricterRow = (
    &'static str,
    &'static str,
    usize,
    &'static str,
    &'static str,
);

/// The format's own reader accepts these.
const STRICTER: &[StricterRow] = &[
    (
        "duplicate_name",
        r#"{"a":{F},"a":{F}}"#,
        16,
        "`a` appears twice",
        "duplicate names",
    ),
    (
        "duplicate_name_escaped",
        r#"{"a":{F},"\u0061":{F}}"#,
        16,
        "`a` appears twice",
        "duplicate names",
    ),
    (
        "duplicate_metadata_key",
        r#"{"__metadata__":{"a":"1","a":"2"}}"#,
        0,
        "`a` appears twice",
        "duplicate names",
    ),
    (
        "space_before",
        " {}",
        0,
        "not a JSON object",
        "white space around the object",
    ),
    (
        "newline_before",
        "\n{}",
        0,
        "not a JSON object",
        "white space around the object",
    ),
    (
        "tab_padding",
        "{}\t\t",
        0,
        "not a JSON object",
        "white space around the object",
    ),
    (
        "newline_padding",
        "{}\n",
        0,
        "not a JSON object",
        "white space around the object",
    ),
    (
        "unknown_field",
        r#"{"a":{F,"note":{"x":[1]}}}"#,
        16,
        "unknown field `note`",
        "unknown fields (a warning where reading is lax)",
    ),
    (
        "metadata_null",
        r#"{"__metadata__":null,"a":{F}}"#,
        16,
        "not the JSON",
        "values of another form",
    ),
    (
        "entry_array",
        r#"{"a":["F32",[1],[0,4]]}"#,
        4,
        "not the JSON",
        "values of another form",
    ),
    (
        "dtype_object",
        r#"{"a":{"dtype":{"F32":null},"shape":[1],"data_offsets":[0,4]}}"#,
        4,
        "not the JSON",
        "values of another form",
    ),
    (
        "name_empty",
        r#"{"":{F}}"#,
        16,
        "empty or has control characters",
        "names empty or with control characters",
    ),
    (
        "name_nul",
        r#"{"a\u0000b":{F}}"#,
        16,
        "empty or has control characters",
        "names empty or with control characters",
    ),
    (
        "name_newline",
        r#"{"a\nb":{F}}"#,
        16,
        "empty or has control characters",
        "names empty or with control characters",
    ),
    (
        "name_c1_control",
        r#"{"a\u0085b":{F}}"#,
        16,
        "empty or has control characters",
        "names empty or with control characters",
    ),
    (
        "zero_then_overflow",
        r#"{"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}}"#,
        0,
        "not a whole number of bytes",
        "shapes that overflow beside a 0",
    ),
    (
        "rank_65",
        r#"{"a":{"dtype":"U8","shape":[RANK65],"data_offsets":[0,1]}}"#,
        1,
        "more than 64 dimensions",
        "more than 64 dimensions",
    ),
];

pub(crate) fn cases() -> Vec<Case> {
    let agreed = AGREED.iter().map(|&(name, json, len, refused)| {
        Case::of_one_file(Kind::File, name, file(&expand(json), len), refused)
    });
    let stricter = STRICTER
        .iter()
        .map(|&(name, json, len, refused, stricter_on)| Case {
            stricter_on,
            ..Case::of_one_file(Kind::File, name, file(&expand(json), len), refused)
        });
    agreed
        .chain(stricter)
        .chain(lengths())
        .chain(made())
        .collect()
}

fn expand(json: &str) -> String {
    const FIELDS: &str = r#""dtype":"F32","shape":[2,2],"data_offsets":[0,16]"#;
    json.replace("{F}", &format!("{{{FIELDS}}}"))
        .replace("{ F }", &format!("{{ {FIELDS} }}"))
        .replace("{F,", &format!("{{{FIELDS},"))
        .replace(",F}", &format!(",{FIELDS}}}"))
        .replace("NEST", &["[".repeat(200), "]".repeat(200)].concat())
        .replace("RANK65", &["1"; 65].join(","))
}

/// A file of a header and so many bytes of data.
pub(crate) fn file(json: &str, data_len: usize) -> Vec<u8> {
    with_length(json.len() as u64, json.as_bytes(), data_len)
}

/// A file with the tensor `name` of one byte.
pub(crate) fn one_byte(name: &str) -> Vec<u8> {
    file(
        &format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#),
        1,
    )
}

fn with_length(len: u64, json: &[u8], data_len: usize) -> Vec<u8> {
    // Small numbers in every dtype, and no two bytes beside each other equal.
    let data = (0..data_len).map(|at| u8::try_from(at % 97).unwrap_or_default());
    [&len.to_le_bytes()[..], json, &data.collect::<Vec<_>>()].concat()
}

/// What can be wrong before the first byte of JSON, or in its bytes.
fn lengths() -> Vec<Case> {
    let case = |name, bytes, refused| Case::of_one_file(Kind::File, name, bytes, refused);
    vec![
        case("file_empty", Vec::new(), "ends inside the header"),
        case("file_of_seven_bytes", vec![0; 7], "ends inside the header"),
        case(
            "length_largest",
            with_length(u64::MAX, b"{}", 0),
            "over the limit",
        ),
        case(
            "length_over_the_limit",
            with_length(100_000_001, b"{}", 0),
            "over the limit",
        ),
        case(
            "length_at_the_limit_past_the_end",
            with_length(100_000_000, b"{}", 0),
            "ends inside the header",
        ),
        case(
            "length_past_the_end",
            with_length(3, b"{}", 0),
            "ends inside the header",
        ),
        case(
            "length_cuts_the_object",
            with_length(1, b"{}", 0),
            "not a JSON object",
        ),
        case("not_utf8", with_length(7, b"{\"\xff\":1}", 0), "not UTF-8"),
        case(
            "utf8_too_long",
            with_length(8, b"{\"\xc0\x80\":1}", 0),
            "not UTF-8",
        ),
    ]
}

/// What is too long to be written down.
fn made() -> Vec<Case> {
    const DTYPES: [(&str, usize); 22] = [
        ("BOOL", 8),
        ("F4", 4),
        ("F6_E2M3", 6),
        ("F6_E3M2", 6),
        ("U8", 8),
        ("I8", 8),
        ("F8_E5M2", 8),
        ("F8_E4M3", 8),
        ("F8_E8M0", 8),
        ("F8_E4M3FNUZ", 8),
        ("F8_E5M2FNUZ", 8),
        ("I16", 16),
        ("U16", 16),
        ("F16", 16),
        ("BF16", 16),
        ("I32", 32),
        ("U32", 32),
        ("F32", 32),
        ("C64", 64),
        ("F64", 64),
        ("I64", 64),
        ("U64", 64),
    ];
    let mut end = 0;
    let entries = DTYPES.map(|(dtype, num_bytes)| {
        let begin = end;
        end += num_bytes;
        format!(r#""{dtype}":{{"dtype":"{dtype}","shape":[8],"data_offsets":[{begin},{end}]}}"#)
    });
    let every_dtype = file(&format!("{{{}}}", entries.join(",")), end);
    let rank_64 = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}}}"#,
        ["1"; 64].join(",")
    );
    vec![
        Case::of_one_file(Kind::File, "every_dtype", every_dtype, ""),
        Case::of_one_file(Kind::File, "rank_64", file(&rank_64, 1), ""),
        Case::of_one_file(Kind::File, "name_long", one_byte(&"a".repeat(2000)), ""),
    ]
}
