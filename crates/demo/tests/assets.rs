//! The assets are what the generator writes, and they fit together.

use std::collections::HashSet;

use demo::grammar::{Document, Message, Role, document};
use demo::{lessons, write_model};
use serde_json::Value;
use tokenizers::Tokenizer;

#[path = "../examples/make_demo_assets/bpe.rs"]
mod bpe;

const NUM_DOCUMENTS: u64 = 2000;

fn file(name: &str) -> &'static [u8] {
    demo::FILES
        .iter()
        .find(|(found, _)| *found == name)
        .expect("the model has this file")
        .1
}

fn json(name: &str) -> Value {
    serde_json::from_slice(file(name)).expect("the file is JSON")
}

fn tokenizer() -> Tokenizer {
    Tokenizer::from_bytes(file("tokenizer.json")).expect("the tokenizer loads")
}

/// Every lesson and a sample of the training text.
fn documents() -> impl Iterator<Item = Document> {
    let sample = (0..NUM_DOCUMENTS).map(|index| document(lessons::SEED + 1, index));
    lessons::train()
        .into_iter()
        .chain(lessons::eval())
        .chain(sample)
}

fn questions(lines: &[Document]) -> HashSet<String> {
    let chats = lines.iter().filter_map(|line| match line {
        Document::Chat(messages) => Some(messages[0].content.clone()),
        Document::Text(_) => None,
    });
    chats.collect()
}

#[test]
fn the_lessons_are_what_the_generator_writes() {
    assert_eq!(lessons::jsonl(&lessons::train()), demo::TRAIN_JSONL);
    assert_eq!(lessons::jsonl(&lessons::eval()), demo::EVAL_JSONL);
}

#[test]
fn the_tokenizer_is_what_the_generator_learns() {
    let learned = bpe::tokenizer_json().unwrap();
    assert!(
        learned.as_bytes() == file("tokenizer.json"),
        "make the assets anew"
    );
}

#[test]
fn every_document_comes_back_from_its_tokens() {
    let tokenizer = tokenizer();
    for document in documents() {
        let text = document.rendered();
        let encoding = tokenizer.encode(text.as_str(), false).unwrap();
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
    }
}

#[test]
fn every_document_fits_in_the_models_positions() {
    let positions = json("config.json")["max_position_embeddings"]
        .as_u64()
        .unwrap();
    let tokenizer = tokenizer();
    for document in documents() {
        let len = tokenizer.encode(document.rendered(), false).unwrap().len();
        assert!(len as u64 <= positions, "{len} tokens: {document:?}");
    }
}

#[test]
fn every_special_token_is_one_id_that_the_configs_name() {
    let tokenizer = tokenizer();
    let special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"];
    for (id, text) in (0..).zip(special) {
        assert_eq!(tokenizer.encode(text, false).unwrap().get_ids(), [id]);
    }
    let config = json("config.json");
    assert_eq!(config["bos_token_id"], 0);
    assert_eq!(config["eos_token_id"], 2);
    assert_eq!(config["pad_token_id"], 3);
    let names = json("tokenizer_config.json");
    assert_eq!(names["bos_token"], special[0]);
    assert_eq!(names["eos_token"], special[2]);
    assert_eq!(names["pad_token"], special[3]);
    assert_eq!(config["vocab_size"], tokenizer.get_vocab_size(true));
}

#[test]
fn the_model_has_as_many_parameters_as_the_readme_says() {
    let config = json("config.json");
    let size = |key: &str| config[key].as_u64().unwrap();
    let (hidden, inner, head) = (
        size("hidden_size"),
        size("intermediate_size"),
        size("head_dim"),
    );
    let q = size("num_attention_heads") * head;
    let kv = size("num_key_value_heads") * head;
    let block = hidden * (2 * q + 2 * kv + 3 * inner + 2);
    let all = size("vocab_size") * hidden + size("num_hidden_layers") * block + hidden;
    assert_eq!(all, 2_607_552);
}

#[test]
fn the_roles_of_a_chat_are_one_token_each() {
    let tokenizer = tokenizer();
    for role in [Role::User, Role::Assistant] {
        assert_eq!(tokenizer.encode(role.name(), false).unwrap().len(), 1);
    }
}

#[test]
fn the_chat_template_renders_what_the_documents_say() {
    let config = json("tokenizer_config.json");
    let mut engine = minijinja::Environment::new();
    let template = config["chat_template"].as_str().unwrap();
    engine.set_keep_trailing_newline(true);
    engine.add_template("chat", template).unwrap();
    let template = engine.get_template("chat").unwrap();
    for document in documents() {
        let Document::Chat(messages) = &document else {
            continue;
        };
        let messages: Vec<_> = messages
            .iter()
            .map(|Message { role, content }| {
                minijinja::context! { role => role.name(), content => content }
            })
            .collect();
        let rendered = template.render(minijinja::context! { messages }).unwrap();
        assert_eq!(rendered, document.rendered());
    }
}

#[test]
fn no_held_out_question_is_taught() {
    let taught = questions(&lessons::train());
    let asked = questions(&lessons::eval());
    assert!(taught.contains(demo::PROMPT));
    assert_eq!(asked.intersection(&taught).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_taught_question_has_one_answer() {
    let lines = lessons::train();
    assert_eq!(
        questions(&lines).len(),
        lines.iter().collect::<HashSet<_>>().len()
    );
}

#[test]
fn the_assets_stay_small() {
    assert!(demo::TRAIN_JSONL.len() < 200_000);
    assert!(file("tokenizer.json").len() < 150_000);
}

#[test]
fn the_model_is_written_file_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    write_model(&model).unwrap();
    for (name, bytes) in demo::FILES {
        assert_eq!(std::fs::read(model.join(name)).unwrap(), *bytes);
    }
}
