//! Checkpoints of torch: archives and pickles with one fault each.

use super::archives::archive;
use super::cases::{Case, Kind, with_program};

const BEGIN: &[u8] = b"\x80\x02";
const DICT: &[u8] = b"}";
const STOP: &[u8] = b".";
const ORDERED: &[u8] = b"ccollections\nOrderedDict\n)R";

/// A whole number.
fn int(number: i64) -> Vec<u8> {
    [&b"\x8a\x08"[..], &number.to_le_bytes()].concat()
}

fn text(text: &str) -> Vec<u8> {
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
    [&b"X"[..], &len, text.as_bytes()].concat()
}

fn tuple(values: &[i64]) -> Vec<u8> {
    let values = values.iter().flat_map(|&value| int(value));
    [&b"("[..], &values.collect::<Vec<_>>(), b"t"].concat()
}

fn storage(class: &str, key: &str, len: i64) -> Vec<u8> {
    let class = format!("ctorch\n{class}\n");
    let words = [
        &b"("[..],
        &text("storage"),
        class.as_bytes(),
        &text(key),
        &text("cpu"),
    ];
    [words.concat(), int(len), b"tQ".to_vec()].concat()
}

/// A tensor as torch rebuilds it.
struct Rebuilt<'a> {
    storage: Vec<u8>,
    offset: i64,
    sizes: &'a [i64],
    strides: &'a [i64],
    hooks: &'a [u8],
}

impl Rebuilt<'_> {
    /// Six floats in storage `0`.
    fn plain() -> Self {
        Self {
            storage: storage("FloatStorage", "0", 6),
            offset: 0,
            sizes: &[2, 3],
            strides: &[3, 1],
            hooks: ORDERED,
        }
    }

    fn program(&self) -> Vec<u8> {
        let function = b"ctorch._utils\n_rebuild_tensor_v2\n(";
        let place = [int(self.offset), tuple(self.sizes), tuple(self.strides)].concat();
        [
            &function[..],
            &self.storage,
            &place,
            b"\x89",
            self.hooks,
            b"tR",
        ]
        .concat()
    }
}

fn dictionary(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries = entries.iter();
    let entries = entries.flat_map(|(name, value)| [text(name), value.clone()].concat());
    [BEGIN, DICT, b"(", &entries.collect::<Vec<_>>(), b"u", STOP].concat()
}

fn whole(body: &[u8]) -> Vec<u8> {
    [BEGIN, body, STOP].concat()
}

pub(crate) fn cases() -> Vec<Case> {
    let program = |name: &str, program: &[u8], refused| {
        Case::of_one_file(Kind::Pickle, name, with_program(program), refused)
    };
    let rows = [tensors(), entries(), programs(), made()].concat();
    let rows = rows.into_iter();
    let mut cases: Vec<_> = rows
        .map(|(name, bytes, refused)| program(name, &bytes, refused))
        .collect();
    cases.extend(whole_archives());
    cases.extend(changed_archives());
    cases
}

type Row = (&'static str, Vec<u8>, &'static str);

/// Name, storage (class, key, length), offset, sizes, strides, what the message says.
type TensorRow = (
    &'static str,
    (&'static str, &'static str, i64),
    i64,
    &'static [i64],
    &'static [i64],
    &'static str,
);

const FLOATS: (&str, &str, i64) = ("FloatStorage", "0", 6);
const OUTSIDE: &str = "does not lie in its storage";
const STRIDED: &str = "does not lie in one piece";
const NEGATIVE: &str = "not made of whole numbers";
const MOST: i64 = i64::MAX;

/// Dictionaries of one tensor that lies where it may, or where it may not.
const TENSORS: &[TensorRow] = &[
    ("pickle_plain", FLOATS, 0, &[2, 3], &[3, 1], ""),
    ("pickle_view", FLOATS, 4, &[2], &[1], ""),
    ("pickle_scalar", FLOATS, 5, &[], &[], ""),
    ("pickle_nothing", FLOATS, 6, &[0, 9], &[9, 1], ""),
    ("pickle_stride_of_one", FLOATS, 0, &[1, 6], &[99, 1], ""),
    ("pickle_transposed", FLOATS, 0, &[3, 2], &[1, 3], STRIDED),
    ("pickle_expanded", FLOATS, 0, &[9, 6], &[0, 1], STRIDED),
    ("pickle_past_the_end", FLOATS, 1, &[2, 3], &[3, 1], OUTSIDE),
    ("pickle_far_past_the_end", FLOATS, MOST, &[1], &[1], OUTSIDE),
    (
        "pickle_size_overflow",
        FLOATS,
        0,
        &[MOST, MOST],
        &[0, 0],
        OUTSIDE,
    ),
    (
        "pickle_stride_overflow",
        FLOATS,
        0,
        &[2, 3],
        &[MOST, MOST],
        OUTSIDE,
    ),
    ("pickle_negative_offset", FLOATS, -1, &[1], &[1], NEGATIVE),
    (
        "pickle_negative_size",
        FLOATS,
        0,
        &[-2, -3],
        &[3, 1],
        NEGATIVE,
    ),
    ("pickle_negative_stride", FLOATS, 3, &[2], &[-1], NEGATIVE),
    ("pickle_rank_65", FLOATS, 0, &[1; 65], &[1; 65], NEGATIVE),
    (
        "pickle_few_strides",
        FLOATS,
        0,
        &[2, 3],
        &[1],
        "not as many strides",
    ),
    (
        "pickle_storage_absent",
        ("FloatStorage", "7", 6),
        0,
        &[1],
        &[1],
        "no entry `data/7`",
    ),
    (
        "pickle_storage_above",
        ("FloatStorage", "../x", 6),
        0,
        &[1],
        &[1],
        "no entry `data/../x`",
    ),
    (
        "pickle_storage_longer",
        ("FloatStorage", "0", 7),
        0,
        &[1],
        &[1],
        "needs 28 bytes, its entry has 24",
    ),
    (
        "pickle_storage_shorter",
        ("HalfStorage", "0", 6),
        0,
        &[1],
        &[1],
        "needs 12 bytes, its entry has 24",
    ),
    (
        "pickle_storage_overflow",
        ("FloatStorage", "0", MOST),
        0,
        &[1],
        &[1],
        "its entry has 24",
    ),
    (
        "pickle_storage_negative",
        ("FloatStorage", "0", -6),
        0,
        &[1],
        &[1],
        "negative length",
    ),
    (
        "pickle_storage_unknown",
        ("QInt8Storage", "0", 6),
        0,
        &[1],
        &[1],
        "`torch.QInt8Storage`",
    ),
];

fn tensors() -> Vec<Row> {
    let row = |&(name, (class, key, len), offset, sizes, strides, refused): &TensorRow| {
        let tensor = Rebuilt {
            storage: storage(class, key, len),
            offset,
            sizes,
            strides,
            hooks: ORDERED,
        };
        (name, dictionary(&[("a", tensor.program())]), refused)
    };
    TENSORS.iter().map(row).collect()
}

/// Dictionaries of several tensors, and tensors with more to them.
fn entries() -> Vec<Row> {
    let plain = || Rebuilt::plain().program();
    let shorter = Rebuilt {
        storage: storage("FloatStorage", "0", 5),
        ..Rebuilt::plain()
    };
    let with_hooks = Rebuilt {
        hooks: b"}K\x01K\x02s",
        ..Rebuilt::plain()
    };
    let of = dictionary;
    vec![
        ("pickle_tied", of(&[("a", plain()), ("b", plain())]), ""),
        (
            "pickle_hooks",
            of(&[("a", with_hooks.program())]),
            "has hooks",
        ),
        (
            "pickle_storage_of_two_lengths",
            of(&[("a", plain()), ("b", shorter.program())]),
            "two dtypes or lengths",
        ),
        (
            "pickle_duplicate_name",
            of(&[("a", plain()), ("a", plain())]),
            "`a` appears twice",
        ),
        (
            "pickle_name_empty",
            of(&[("", plain())]),
            "empty or has control characters",
        ),
        (
            "pickle_name_control",
            of(&[("a\n", plain())]),
            "empty or has control characters",
        ),
        (
            "pickle_number",
            of(&[("step", int(3))]),
            "`step` is a whole number",
        ),
        (
            "pickle_nested",
            of(&[("model", b"}".to_vec())]),
            "`model` is a dictionary",
        ),
        (
            "pickle_list",
            whole(&[&b"]"[..], &plain(), b"a"].concat()),
            "it holds a list",
        ),
        ("pickle_tensor", whole(&plain()), "it holds a tensor"),
        (
            "pickle_build_of_tensor",
            whole(&[&plain()[..], b"}b"].concat()),
            "what is no dictionary",
        ),
    ]
}

/// The body of a pickle, without protocol and stop, and what the message says.
type ProgramRow = (&'static str, &'static [u8], &'static str);

/// Pickles of something else, and those that break the machine of a careless reader.
const PROGRAMS: &[ProgramRow] = &[
    ("pickle_empty", DICT, ""),
    ("pickle_ordered", ORDERED, ""),
    (
        "pickle_ordered_with_state",
        b"ccollections\nOrderedDict\n)R}b",
        "",
    ),
    ("pickle_key_of_number", b"}K\x01K\x02s", "name is no text"),
    (
        "pickle_os_system",
        b"cos\nsystem\n(X\x04\0\0\0echotR",
        "`os.system`",
    ),
    (
        "pickle_eval",
        b"cbuiltins\neval\n(X\x01\0\0\x001tR",
        "`builtins.eval`",
    ),
    (
        "pickle_global_with_dots",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n",
        "__globals__`",
    ),
    (
        "pickle_global_control",
        b"ctorch\n\x1b[2Jx\n",
        "\\u{1b}[2Jx`",
    ),
    (
        "pickle_call_without_tuple",
        b"ccollections\nOrderedDict\n]R",
        "without its arguments",
    ),
    (
        "pickle_call_with_arguments",
        b"ccollections\nOrderedDict\n(K\x01tR",
        "other arguments",
    ),
    ("pickle_call_of_number", b"K\x01)R", "what is no function"),
    (
        "pickle_persistent_text",
        b"X\x01\0\0\x000Q",
        "not a storage's",
    ),
    ("pickle_list_of_itself", b"]q\x00h\x00a", "it holds a list"),
    (
        "pickle_dictionary_of_itself",
        b"}q\x00X\x01\0\0\0ah\x00s",
        "`a` is a dictionary",
    ),
    ("pickle_stop_at_once", b"", "empty stack"),
    ("pickle_two_values", b"}}", "something is left over"),
    (
        "pickle_protocol_twice",
        b"\x80\x02}",
        "begins or ends twice",
    ),
    (
        "pickle_unknown_instruction",
        b"}\x93",
        "instruction 0x93 at byte 3",
    ),
    (
        "pickle_text_too_long",
        b"X\xff\xff\xff\xffa",
        "ends inside an instruction",
    ),
    ("pickle_text_not_utf8", b"X\x01\0\0\0\xff", "not UTF-8"),
    (
        "pickle_number_too_long",
        b"\x8a\x09\0\0\0\0\0\0\0\0\x01",
        "more than 64 bits",
    ),
    ("pickle_fetches_nothing", b"h\x00", "never remembered"),
    (
        "pickle_fetches_far",
        b"j\xff\xff\xff\xff",
        "never remembered",
    ),
    ("pickle_remembers_nothing", b"q\x00h\x00", "empty stack"),
    ("pickle_tuple_of_too_few", b"K\x01\x87", "empty stack"),
    ("pickle_mark_missing", b"K\x01t", "a mark is missing"),
    ("pickle_append_to_number", b"K\x01K\x02a", "what is no list"),
    (
        "pickle_item_of_number",
        b"K\x01K\x02K\x03s",
        "what is no dictionary",
    ),
    (
        "pickle_key_without_value",
        b"}(K\x01u",
        "a key has no value",
    ),
    ("pickle_takes_below_the_mark", b"}(s", "empty stack"),
    ("pickle_deep_marks", &[b'('; 65], "nests too deep"),
];

fn programs() -> Vec<Row> {
    let row = |&(name, body, refused): &ProgramRow| (name, whole(body), refused);
    PROGRAMS.iter().map(row).collect()
}

/// Pickles that are too long to be written down, or no whole ones.
fn made() -> Vec<Row> {
    let mut laughs = b"]".to_vec();
    for level in 0..40_u8 {
        laughs.extend([b'q', level, b']', b'(']);
        laughs.extend([b'h', level].repeat(10));
        laughs.push(b'e');
    }
    let deep = [&b")"[..], &b"\x85".repeat(5000)].concat();
    vec![
        ("pickle_laughs", whole(&laughs), "something is left over"),
        ("pickle_deep_tuples", whole(&deep), "it holds a tuple"),
        (
            "pickle_without_stop",
            BEGIN.to_vec(),
            "ends inside an instruction",
        ),
        (
            "pickle_of_nothing",
            Vec::new(),
            "ends inside an instruction",
        ),
        (
            "pickle_text_behind",
            b"\x80\x02}.x".to_vec(),
            "something is left over",
        ),
        (
            "pickle_protocol_4",
            b"\x80\x04}.".to_vec(),
            "protocol is not 2",
        ),
        (
            "pickle_without_protocol",
            b"}.".to_vec(),
            "protocol is not 2",
        ),
    ]
}

/// Archives of other entries than a dictionary of tensors has.
fn whole_archives() -> Vec<Case> {
    let program = dictionary(&[("a", Rebuilt::plain().program())]);
    let valid = with_program(&program);
    let with = |more: (&str, &[u8])| {
        let entries: [(&str, &[u8]); 4] = [
            ("data.pkl", &program),
            ("version", b"3\n"),
            ("data/0", &[1; 24]),
            more,
        ];
        archive("pytorch_model", &entries)
    };
    let elsewhere = archive("x", &[("../y/data.pkl", &program)]);
    let half = valid[..valid.len() / 2].to_vec();
    let script = [b"#!/bin/sh\n", &valid[..]].concat();
    let pointer = b"version https://git-lfs.github.com/spec/v1\n".to_vec();
    let only_end = [&b"PK\x05\x06"[..], &[0; 18]].concat();
    [
        ("archive_plain", valid.clone(), ""),
        ("archive_little_endian", with(("byteorder", b"little")), ""),
        (
            "archive_big_endian",
            with(("byteorder", b"big")),
            "byte order is `big`",
        ),
        (
            "archive_torchscript",
            with(("constants.pkl", b"\x80\x02).")),
            "TorchScript",
        ),
        (
            "archive_duplicate_entry",
            with(("data/0", &[3; 24])),
            "appears twice",
        ),
        ("archive_other_folder", elsewhere, "no entry `data.pkl`"),
        (
            "archive_byte_behind",
            [&valid[..], b"x"].concat(),
            "does not end with the end of one",
        ),
        ("archive_cut", half, "does not end with the end of one"),
        ("archive_begins_as_a_script", script, "no zip archive"),
        ("archive_empty", only_end, "no zip archive"),
        ("archive_bare_pickle", program.clone(), "a bare pickle"),
        ("archive_lfs_pointer", pointer, "Git LFS"),
    ]
    .map(|(name, bytes, refused)| Case::of_one_file(Kind::Pickle, name, bytes, refused))
    .into()
}

/// Name, place from the directory's begin or back from the end, bytes, message.
type ChangeRow = (&'static str, Place, &'static [u8], &'static str);

enum Place {
    /// In the directory's first entry, which is the program's.
    Directory(usize),
    /// So many bytes before the end.
    End(usize),
}

/// Bytes of a valid archive that are changed.
const CHANGES: &[ChangeRow] = &[
    (
        "archive_compressed",
        Place::Directory(10),
        &[8],
        "is compressed",
    ),
    (
        "archive_encrypted",
        Place::Directory(8),
        &[1],
        "is encrypted",
    ),
    (
        "archive_two_sizes",
        Place::Directory(24),
        &[1, 0, 0, 0],
        "is compressed",
    ),
    (
        "archive_entry_far_away",
        Place::Directory(42),
        &[0xff, 0xff, 0xff, 0x7f],
        "runs into what follows",
    ),
    (
        "archive_entries_overlap",
        Place::Directory(42),
        &[0x80],
        "runs into what follows",
    ),
    (
        "archive_size_unknown",
        Place::Directory(20),
        &[0xff; 8],
        "its directory is broken",
    ),
    (
        "archive_name_too_long",
        Place::Directory(28),
        &[0xff, 0xff],
        "its directory is broken",
    ),
    (
        "archive_comment",
        Place::End(2),
        &[1],
        "does not end with the end of one",
    ),
    (
        "archive_of_two_disks",
        Place::End(18),
        &[1],
        "does not end with the end of one",
    ),
    (
        "archive_many_entries",
        Place::End(12),
        &[0xff, 0xff],
        "too short for its entries",
    ),
    (
        "archive_few_entries",
        Place::End(12),
        &[2, 0],
        "more entries than it says",
    ),
    (
        "archive_directory_elsewhere",
        Place::End(6),
        &[0; 4],
        "directory does not lie before its end",
    ),
];

fn changed_archives() -> Vec<Case> {
    let valid = with_program(&dictionary(&[("a", Rebuilt::plain().program())]));
    // The end says where the directory begins.
    let directory = valid[valid.len() - 6..]
        .first_chunk()
        .map(|bytes| u32::from_le_bytes(*bytes));
    let directory = directory
        .and_then(|begin| usize::try_from(begin).ok())
        .unwrap_or_default();
    let changed = |(name, place, bytes, refused): &ChangeRow| {
        let begin = match place {
            Place::Directory(at) => directory + at,
            Place::End(back) => valid.len() - back,
        };
        let mut file = valid.clone();
        file[begin..begin + bytes.len()].copy_from_slice(bytes);
        Case::of_one_file(Kind::Pickle, name, file, refused)
    };
    CHANGES.iter().map(changed).collect()
}
