//! Renderings, ids and masks agree with `transformers` on the files in
//! `testdata/`, which `make.py` there wrote.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the lints spare test functions, not what those call"
)]

use std::path::Path;

use data::{Document, Message, Parts, Record, Tokenizer};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Chat {
    name: String,
    bos_token: String,
    eos_token: String,
    template: String,
    messages: serde_json::Value,
    text: String,
    prompt: String,
    input_ids: Vec<u32>,
    in_loss: Vec<u8>,
}

#[derive(Deserialize)]
struct Features {
    messages: serde_json::Value,
    rows: Vec<Feature>,
}

#[derive(Deserialize)]
struct Feature {
    name: String,
    template: String,
    text: String,
}

#[derive(Deserialize)]
struct Encoded {
    text: String,
    input_ids: Vec<u32>,
    without_special: Vec<u32>,
    decoded: String,
}

fn read(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    std::fs::read(folder.join(name)).unwrap()
}

fn golden<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&read(name)).unwrap()
}

fn tokenizer(bos: &str, eos: &str, template: &str) -> Tokenizer {
    let config = json!({"bos_token": bos, "eos_token": {"content": eos}}).to_string();
    Tokenizer::from_parts(&Parts {
        origin: "testdata",
        tokenizer_json: &read("tokenizer.json"),
        tokenizer_config: Some(&config),
        chat_template: Some(template),
        ..Parts::default()
    })
    .unwrap()
}

fn messages(json: &serde_json::Value) -> Vec<Message> {
    let Record::Messages(messages) = Record::parse(&json!({"messages": json}).to_string()).unwrap()
    else {
        panic!("messages");
    };
    messages
}

#[test]
fn conversations_render_tokenize_and_mask_as_in_transformers() {
    let chats: Vec<Chat> = golden("chats.json");
    assert!(chats.len() >= 24);
    for chat in chats {
        let tokenizer = tokenizer(&chat.bos_token, &chat.eos_token, &chat.template);
        let template = tokenizer.chat_template().unwrap();
        let messages = messages(&chat.messages);
        let case = format!("{}: {:?}", chat.name, chat.text);
        let (_, before) = messages.split_last().unwrap();
        assert_eq!(
            template.render(&messages, false).unwrap(),
            chat.text,
            "{case}"
        );
        assert_eq!(
            template.render(before, true).unwrap(),
            chat.prompt,
            "{case}"
        );
        let document = Document::from_messages(&tokenizer, &template, &messages).unwrap();
        assert_eq!(document.ids, chat.input_ids, "{case}");
        let in_loss: Vec<u8> = document.in_loss.iter().map(|&b| u8::from(b)).collect();
        assert_eq!(in_loss, chat.in_loss, "{case}");
    }
}

#[test]
fn template_language_features_render_as_in_transformers() {
    let features: Features = golden("templates.json");
    let messages = messages(&features.messages);
    let mut wrong = Vec::new();
    for feature in features.rows {
        let tokenizer = tokenizer("<s>", "</s>", &feature.template);
        let text = tokenizer
            .chat_template()
            .and_then(|template| template.render(&messages, false));
        match text {
            Ok(text) if text == feature.text => {}
            other => wrong.push(format!(
                "{}: {other:?}, expected {:?}",
                feature.name, feature.text
            )),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn texts_encode_and_decode_as_in_transformers() {
    let tokenizer = tokenizer("<s>", "</s>", "");
    for text in golden::<Vec<Encoded>>("texts.json") {
        let plain = tokenizer.encode(&text.text, false).unwrap();
        assert_eq!(plain, text.without_special, "{:?}", text.text);
        assert_eq!(
            tokenizer.encode(&text.text, true).unwrap(),
            text.input_ids,
            "{:?}",
            text.text
        );
        assert_eq!(tokenizer.decode(&plain, false).unwrap(), text.decoded);
        let offsets = tokenizer.encode_with_offsets(&text.text).unwrap();
        assert!(offsets.iter().map(|token| token.id).eq(plain));
    }
}
