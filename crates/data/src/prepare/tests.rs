//! From lines to rows, through the file.

use super::*;
use crate::rows::{IGNORED, RowLen, Rows};
use crate::sample::Sample;
use crate::tokenizer::tests::small;

const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn source(lines: &str) -> Source {
    Source::Memory {
        name: "m.jsonl".to_owned(),
        bytes: lines.as_bytes().to_vec().into(),
    }
}

fn settings(seq: usize) -> Settings {
    Settings {
        seq,
        vocab_size: 500,
        seed: 5,
        shuffle: false,
    }
}

type Row = (RowLen, Vec<u32>, Vec<u32>);

/// Builds and reads back everything: per row its length, ids and targets.
fn build(lines: &str, settings: &Settings) -> Result<(Prepared, Vec<Row>)> {
    let folder = tempfile::tempdir().unwrap();
    let out_file = folder.path().join("rows");
    let prepared = Prepared::build(&[source(lines)], Some(&small(CHATML)), settings, &out_file);
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(
        left,
        usize::from(prepared.is_ok()),
        "no temporary file stays"
    );
    let prepared = prepared?;
    let rows = Rows::open(&out_file)?;
    assert_eq!(rows.counts(), prepared.counts);
    assert_eq!(rows.digest(), prepared.digest);
    let all = (0..rows.num_rows()).map(|index| {
        let (mut ids, mut targets) = (vec![9; settings.seq], vec![9; settings.seq]);
        let len = rows.row(index, &mut ids, &mut targets)?;
        Ok((len, ids, targets))
    });
    let all = all.collect::<Result<Vec<_>>>()?;
    assert_eq!(
        rows.num_targets(0..rows.num_rows())?,
        prepared.counts.targets
    );
    Ok((prepared, all))
}

#[track_caller]
fn refuses(lines: &str, at_line: u64, words: &str) {
    let error = build(lines, &settings(8)).unwrap_err();
    let DataError::AtLine { file, line, source } = error else {
        panic!("{error}");
    };
    assert_eq!((file.as_path(), line), (Path::new("m.jsonl"), at_line));
    assert!(source.to_string().contains(words), "{source}");
}

#[test]
fn a_preparation_that_is_stopped_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out_file = folder.path().join("rows");
    let stopped = Prepared::build_unless(
        &AtomicBool::new(true),
        &[source("{\"input_ids\": [5, 6]}\n")],
        None,
        &settings(4),
        &out_file,
    );
    assert!(matches!(stopped, Err(DataError::Stopped)), "{stopped:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn input_ids_are_rows_by_themselves() {
    let lines =
        "{\"input_ids\": [5, 6, 7, 8]}\n{\"input_ids\": [5, 6, 7], \"labels\": [-100, -100, 7]}\n";
    let (prepared, rows) = build(lines, &settings(4)).unwrap();
    let x = IGNORED;
    let whole = RowLen {
        len: 4,
        num_targets: 3,
    };
    let padded = RowLen {
        len: 3,
        num_targets: 1,
    };
    assert_eq!(rows[0], (whole, vec![5, 6, 7, 8], vec![6, 7, 8, x]));
    assert_eq!(rows[1], (padded, vec![5, 6, 7, 0], vec![x, 7, x, x]));
    let counts = Counts {
        documents: 2,
        tokens: 7,
        targets: 4,
        rows: 2,
        padded_tokens: 1,
    };
    assert_eq!(prepared.counts, counts);
}

#[test]
fn documents_run_on_across_rows_and_only_the_last_is_padded() {
    let lines = "{\"text\": \"one two three\"}\n{\"text\": \"yes no maybe\"}\n";
    let tokenizer = small(CHATML);
    let mut stream = Document::from_text(&tokenizer, "one two three")
        .unwrap()
        .ids;
    stream.extend(Document::from_text(&tokenizer, "yes no maybe").unwrap().ids);
    for seq in 2..12 {
        let (prepared, rows) = build(lines, &settings(seq)).unwrap();
        assert_eq!(rows.len(), stream.len().div_ceil(seq));
        for (chunk, (len, ids, targets)) in stream.chunks(seq).zip(&rows) {
            assert_eq!(len.len as usize, chunk.len());
            assert_eq!(&ids[..chunk.len()], chunk);
            assert_eq!(&targets[..chunk.len() - 1], &chunk[1..]);
            assert!(
                targets[chunk.len() - 1..]
                    .iter()
                    .all(|&target| target == IGNORED)
            );
        }
        let counts = prepared.counts;
        assert_eq!(counts.tokens, stream.len() as u64);
        assert_eq!(
            counts.padded_tokens,
            counts.rows * seq as u64 - counts.tokens
        );
    }
}

#[test]
fn a_shuffle_moves_whole_documents_and_depends_on_the_seed() {
    let lines: Vec<_> = (0..9).map(|n| format!("{{\"text\": \"{n}\"}}")).collect();
    let lines = lines.join("\n");
    let firsts = |seed| {
        let settings = Settings {
            seed,
            shuffle: true,
            ..settings(3)
        };
        let (_, rows) = build(&lines, &settings).unwrap();
        rows.into_iter().map(|(_, ids, _)| ids).collect::<Vec<_>>()
    };
    let file_order: Vec<_> = build(&lines, &settings(3)).unwrap().1;
    let file_order: Vec<_> = file_order.into_iter().map(|(_, ids, _)| ids).collect();
    let mut shuffled = firsts(1);
    assert_eq!(shuffled, firsts(1));
    assert_ne!(shuffled, firsts(2));
    assert_ne!(shuffled, file_order);
    shuffled.sort();
    let mut sorted = file_order;
    sorted.sort();
    assert_eq!(
        shuffled, sorted,
        "each document is <s> digit </s>: a row of its own"
    );
}

#[test]
fn a_conversation_shows_its_targets_in_a_sample() {
    let lines = r#"{"messages": [{"role": "user", "content": "ask ☕"}, {"role": "assistant", "content": "yes ☕"}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let out_file = folder.path().join("rows");
    let tokenizer = small(CHATML);
    Prepared::build(&[source(lines)], Some(&tokenizer), &settings(64), &out_file).unwrap();
    let rows = Rows::open(&out_file).unwrap();
    let sample = Sample::read(&rows, 0, Some(&tokenizer)).unwrap();
    let text = sample.to_text(false);
    assert!(
        text.ends_with(
            "<|im_start|>user\nask ☕<|im_end|>\n<|im_start|>assistant\n«yes ☕<|im_end|>»\n\n"
        ),
        "{text}"
    );
    assert_eq!(sample.num_targets() as u64, rows.counts().targets);
    assert_eq!(sample.pieces.len() + sample.padded_tokens, 64);
    assert!(
        sample
            .to_text(true)
            .contains("\x1b[32myes ☕<|im_end|>\x1b[0m")
    );
    let bare = Sample::read(&rows, 0, None).unwrap();
    assert!(bare.pieces.iter().all(|piece| piece.text.is_empty()));
}

#[test]
fn rows_of_ids_and_of_documents_can_stand_together() {
    let lines = "{\"text\": \"yes\"}\n{\"input_ids\": [7, 8]}\n";
    let (_, rows) = build(lines, &settings(4)).unwrap();
    assert_eq!(rows[0].1, [7, 8, 0, 0]);
    assert_eq!(rows[1].1[0], 1);
}

#[test]
fn a_faulty_line_is_named() {
    let good = "{\"input_ids\": [1, 2]}\n";
    for (bad, words) in [
        ("{", "JSON"),
        ("{}", "none of them"),
        ("{\"text\": \"\"}", "empty string"),
        (
            "{\"input_ids\": [1, 500]}",
            "token id 500 is beyond the 500 rows",
        ),
        ("{\"input_ids\": [-1]}", "token id -1"),
        (
            "{\"input_ids\": [1, 2], \"labels\": [1, 500]}",
            "token id 500",
        ),
        (
            "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}",
            "9 input_ids, but a row holds 8",
        ),
        (
            "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
            "roles: user",
        ),
    ] {
        refuses(&format!("{good}\n{bad}\n{good}"), 3, words);
    }
}

#[test]
fn a_token_beyond_the_embedding_is_named_with_its_text() {
    let small_vocab = Settings {
        vocab_size: 3,
        ..settings(8)
    };
    let Err(DataError::AtLine { source, .. }) = build(r#"{"text": "<|im_start|>"}"#, &small_vocab)
    else {
        panic!("accepted");
    };
    assert_eq!(
        source.to_string(),
        "token id 3 (`<|im_start|>`) is beyond the 3 rows of the embedding; the tokenizer has ids up to 384"
    );
}

#[test]
fn without_a_tokenizer_only_ids_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let out_file = folder.path().join("rows");
    let read = |lines: &str| Prepared::build(&[source(lines)], None, &settings(4), &out_file);
    assert!(read("{\"input_ids\": [1, 2]}").is_ok());
    let error = read("{\"text\": \"a\"}").unwrap_err();
    let DataError::AtLine {
        line: 1, source, ..
    } = error
    else {
        panic!("{error}");
    };
    assert!(matches!(
        *source,
        DataError::NeedsTokenizer { kind: "text" }
    ));
    assert!(source.to_string().contains("tokenizer.json"), "{source}");
}

#[test]
fn nothing_to_learn_is_an_error() {
    let empty = build("\n \n", &settings(4)).unwrap_err();
    assert_eq!(empty.to_string(), "no record in m.jsonl");
    let masked = build(
        "{\"input_ids\": [1, 2], \"labels\": [1, -100]}",
        &settings(4),
    )
    .unwrap_err();
    assert!(matches!(masked, DataError::NoTargets { num_tokens: 2, .. }));
}

#[test]
fn a_row_of_one_token_is_refused() {
    let error = build("{\"input_ids\": [1]}", &settings(1)).unwrap_err();
    assert!(matches!(error, DataError::BadSetting { .. }), "{error}");
}

#[test]
fn the_fingerprint_follows_inputs_and_settings() {
    let digest = |lines: &str, settings: Settings| build(lines, &settings).unwrap().0.digest;
    let lines = "{\"text\": \"yes\"}\n";
    let base = digest(lines, settings(4));
    assert_eq!(base, digest(lines, settings(4)));
    assert_ne!(base, digest("{\"text\": \"no\"}\n", settings(4)));
    assert_ne!(base, digest(lines, settings(5)));
    let reseeded = Settings {
        seed: 6,
        ..settings(4)
    };
    assert_ne!(base, digest(lines, reseeded));
}

#[test]
fn a_file_of_rows_that_is_not_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    Prepared::build(
        &[source("{\"input_ids\": [1, 2]}")],
        None,
        &settings(4),
        &path,
    )
    .unwrap();
    let whole = std::fs::read(&path).unwrap();
    let rows = Rows::open(&path).unwrap();
    assert!(matches!(
        rows.row_len(1),
        Err(DataError::NoSuchRow {
            index: 1,
            num_rows: 1
        })
    ));
    let mut huge = whole.clone();
    huge[56..64].fill(0xff);
    let mut other_version = whole.clone();
    other_version[8] = 9;
    for bytes in [
        &whole[..whole.len() - 1],
        &whole[..10],
        b"",
        &huge,
        &other_version,
        &[0; 200],
    ] {
        std::fs::write(&path, bytes).unwrap();
        let found = Rows::open(&path);
        assert!(matches!(found, Err(DataError::BadRows { .. })), "{found:?}");
    }
}
