//! The readers of foreign bytes, each with inputs to begin from and what an input
//! may cost at most.

use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::{Folder, Strictness, header_len, inspect_file, parse_header_with};
use safetensors::SafeTensors;
use spec::ModelSpec;
use tempfile::TempDir;

use crate::archives::archive;

/// Reads an input; whether it was accepted.
type Read = Box<dyn Fn(&[u8]) -> bool>;

/// A reader under test.
pub(crate) struct Target {
    pub(crate) name: &'static str,
    /// Valid inputs, and some that are not.
    pub(crate) seeds: Vec<Vec<u8>>,
    /// Pieces of the language.
    pub(crate) words: &'static [&'static [u8]],
    /// Bytes that may be asked for, per byte of input and beside that.
    pub(crate) bytes_per_byte: usize,
    /// Reads an input; whether it was accepted.
    pub(crate) read: Read,
}

/// Bytes that reading takes whatever the input: buffers, paths, messages.
pub(crate) const FIXED_BYTES: usize = 256 << 10;

pub(crate) fn all(place: &TempDir) -> Vec<Target> {
    vec![
        header(),
        index(place.path()),
        config(),
        archive_bytes(place.path()),
        program(place.path()),
    ]
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata")
}

/// The files of a folder with one of these endings.
fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let folder = testdata().join(folder);
    let items = fs::read_dir(&folder).expect("test data");
    let mut paths: Vec<_> = items.map(|item| item.expect("an item").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(ending));
    // The order of a folder's items is the file system's.
    paths.sort();
    let read = |path: PathBuf| fs::read(path).expect("a file");
    paths.into_iter().map(read).collect()
}

/// Writes a file that replaces the one before. Not over it: file systems write a
/// file that is emptied and filled again to the disk at once.
fn write_new(path: &Path, bytes: &[u8]) {
    if path.exists() {
        fs::remove_file(path).expect("a removed file");
    }
    fs::write(path, bytes).expect("a written file");
}

fn header() -> Target {
    let read = |file: &[u8]| {
        let Some(&prefix) = file.first_chunk() else {
            return false;
        };
        let Ok(len) = header_len(prefix, file.len() as u64) else {
            return false;
        };
        let (json, data) = file[8..].split_at(usize::try_from(len).expect("below the file's"));
        let lax = parse_header_with(json, data.len() as u64, Strictness::Lax);
        let strict = parse_header_with(json, data.len() as u64, Strictness::Strict);
        if lax.is_ok() {
            assert!(SafeTensors::deserialize(file).is_ok(), "only we accept");
        } else {
            assert!(strict.is_err(), "only strict reading accepts");
        }
        strict.is_ok()
    };
    Target {
        name: "header",
        seeds: files("torture/files", ".safetensors"),
        words: &[
            br#""__metadata__":{"a":"b"},"#,
            br#""dtype":"F32""#,
            br#""F4""#,
            br#""F64""#,
            br#""shape":[2,2]"#,
            br#""data_offsets":[0,0]"#,
            br#",{"a":[{}]}"#,
            br"\u0061",
            br"\ud800",
            b"[[[[[[[[",
            b"{}",
            b"null",
            b"1e9",
            b"-0",
            b" ",
            b"\"",
            b"\\",
            b"\xef\xbb\xbf",
        ],
        bytes_per_byte: 64,
        read: Box::new(read),
    }
}

fn index(place: &Path) -> Target {
    let folder = place.join("model");
    fs::create_dir(&folder).expect("a folder");
    let file = |name: &str, tensor: &str| {
        let json = format!(r#"{{"{tensor}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        let len = (json.len() as u64).to_le_bytes();
        let bytes = [&len[..], json.as_bytes(), b"x"].concat();
        fs::write(folder.join(name), bytes).expect("a file");
    };
    file("model-00001-of-00002.safetensors", "a");
    file("model-00002-of-00002.safetensors", "b");
    let path = folder.join("model.safetensors.index.json");
    Target {
        name: "index",
        seeds: vec![
            br#"{"metadata":{"total_size":2},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#.to_vec(),
            br#"{"weight_map":{"a":"../model.safetensors"}}"#.to_vec(),
        ],
        words: &[
            br#""weight_map":{"#,
            br#""metadata":{"total_size":"#,
            br#""a":"a","#,
            br#""b":"","#,
            b"../",
            b"/",
            br"\u0000",
            b"[[[[[[[[",
            b"{\"a\":",
            b"null",
            b"1e400",
        ],
        bytes_per_byte: 64,
        read: Box::new(move |bytes| {
            write_new(&path, bytes);
            Folder::open(&folder).is_ok()
        }),
    }
}

fn config() -> Target {
    Target {
        name: "config",
        seeds: vec![
            br#"{"model_type":"llama","hidden_act":"silu","hidden_size":8,"intermediate_size":12,"num_attention_heads":2,"num_key_value_heads":1,"num_hidden_layers":1,"vocab_size":20,"max_position_embeddings":32,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true,"eos_token_id":[1,2],"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":16}}"#.to_vec(),
        ],
        words: &[b"null", b"-1", b"1e308", b"0.5", b"{}", b"[[[[[[[[", b"\"", b"18446744073709551616"],
        bytes_per_byte: 256,
        read: Box::new(|bytes| {
            let text = String::from_utf8_lossy(bytes);
            ModelSpec::from_config(&text).is_ok()
        }),
    }
}

fn archive_bytes(place: &Path) -> Target {
    let path = place.join("archive.bin");
    Target {
        name: "archive",
        seeds: files("pickle", ".bin"),
        words: &[
            b"PK\x01\x02",
            b"PK\x03\x04",
            b"PK\x05\x06",
            b"PK\x06\x06",
            b"PK\x06\x07",
            b"\x01\x00\x18\x00",
            b"\xff\xff\xff\xff",
            b"data.pkl",
        ],
        bytes_per_byte: 256,
        read: Box::new(move |bytes| {
            write_new(&path, bytes);
            inspect_file(&path).is_ok()
        }),
    }
}

fn program(place: &Path) -> Target {
    let path = place.join("program.bin");
    let mut seeds = Vec::new();
    for file in files("pickle", ".bin") {
        let begin = file.windows(2).position(|pair| pair == b"\x80\x02");
        // What follows the program is padding; the last stop is not far from its end.
        if let Some(begin) = begin {
            let end = file[begin..].windows(2).position(|pair| pair == b"PK");
            let end = end.map_or(file.len(), |end| begin + end);
            let program = &file[begin..end];
            let stop = program.iter().rposition(|&byte| byte == b'.');
            seeds.push(program[..=stop.unwrap_or(0)].to_vec());
        }
    }
    Target {
        name: "program",
        seeds,
        words: &[
            b"ctorch._utils\n_rebuild_tensor_v2\n",
            b"ctorch\nFloatStorage\n",
            b"cos\nsystem\n",
            b"ccollections\nOrderedDict\n",
            b")R",
            b"(",
            b"t",
            b"\x85",
            b"\x86",
            b"\x87",
            b"h\x00",
            b"h\x01",
            b"q\x00",
            b"j\xff\xff\xff\xff",
            b"r\xff\xff\xff\xff",
            b"X\xff\xff\xff\xff",
            b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"J\xff\xff\xff\xff",
            b"]a",
            b"(e",
            b"}s",
            b"(u",
            b"}b",
            b"Q",
            b".",
        ],
        bytes_per_byte: 512,
        read: Box::new(move |program| {
            let storage = [0; 96];
            let entries = [
                ("data.pkl", program),
                ("data/0", &storage),
                ("data/1", &storage[..16]),
            ];
            write_new(&path, &archive("a", &entries));
            inspect_file(&path).is_ok()
        }),
    }
}
