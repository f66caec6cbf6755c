//! The demo's language: small stories, questions about them, plain knowledge, talk.
//!
//! A document is a function of its seed and its index alone. The training text and the
//! held-out text are told apart by what they say (see [`held_out`]), so the two share
//! no document whatever seeds they come from.

mod knowledge;
mod order;
mod plots;
mod rng;
mod story;
mod talk;
mod words;

use serde_json::json;

pub use self::rng::Rng;
use self::story::Story;

/// Who says a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

impl Role {
    /// The role's name in a chat template.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// One message of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

/// One line of a data file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Document {
    /// A story and nothing else.
    Text(String),
    /// Turns of user and assistant.
    Chat(Vec<Message>),
}

impl Document {
    /// A chat of questions and answers.
    pub fn chat(turns: impl IntoIterator<Item = [String; 2]>) -> Self {
        let turn =
            |[question, answer]: [String; 2]| [(Role::User, question), (Role::Assistant, answer)];
        let messages = turns.into_iter().flat_map(turn);
        Self::Chat(
            messages
                .map(|(role, content)| Message { role, content })
                .collect(),
        )
    }

    /// The document as a line of JSON, without the line's end.
    pub fn json(&self) -> String {
        match self {
            Self::Text(text) => json!({ "text": text }).to_string(),
            Self::Chat(messages) => {
                let messages: Vec<_> = messages
                    .iter()
                    .map(|message| {
                        json!({ "role": message.role.name(), "content": message.content })
                    })
                    .collect();
                json!({ "messages": messages }).to_string()
            }
        }
    }

    /// The document as the model reads it: the chat template's text, or the story.
    pub fn rendered(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Chat(messages) => messages
                .iter()
                .flat_map(|message| {
                    let role = message.role.name();
                    ["<|im_start|>", role, "\n", &message.content, "<|im_end|>\n"]
                })
                .collect(),
        }
    }
}

/// Document `index` under `seed`.
pub fn document(seed: u64, index: u64) -> Document {
    let rng = &mut Rng::new(seed, index);
    match rng.below(100) {
        0..30 => Document::Text(story(rng).text),
        30..40 => Document::chat([wish(rng).0]),
        40..60 => Document::chat(told_then_asked(rng)),
        60..75 => Document::chat(read_then_asked(rng)),
        _ => Document::chat(talked(rng)),
    }
}

/// Whether a document belongs to the held-out text: one in 32, by a hash of its line.
pub fn held_out(document: &Document) -> bool {
    // FNV-1a; its low bits are good enough to deal lines.
    let hash = document
        .json()
        .bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
    (hash >> 32).is_multiple_of(32)
}

/// A plain question with its answer, as the base model knows it.
pub fn plain_question(rng: &mut Rng) -> [String; 2] {
    knowledge::question(rng)
}

fn story(rng: &mut Rng) -> Story {
    story::tell(rng.pick(plots::PLOTS), rng)
}

/// A wish for a story and the story.
fn wish(rng: &mut Rng) -> ([String; 2], Story) {
    let story = story(rng);
    let request = story.requests[rng.below(story.requests.len())].clone();
    ([request, story.text.clone()], story)
}

/// A wish, the story, and questions about it.
fn told_then_asked(rng: &mut Rng) -> Vec<[String; 2]> {
    let (turn, story) = wish(rng);
    let mut turns = vec![turn];
    turns.extend(some_asks(&story, rng));
    turns
}

/// A story to read with a question, then more questions.
fn read_then_asked(rng: &mut Rng) -> Vec<[String; 2]> {
    let story = story(rng);
    let mut turns = some_asks(&story, rng);
    if let Some([question, _]) = turns.first_mut() {
        *question = match rng.below(3) {
            0 => format!("Read this story. {} {question}", story.text),
            1 => format!("{question} {}", story.text),
            _ => format!("{} {question}", story.text),
        };
    }
    turns
}

/// One to four different questions about a story, in any order.
fn some_asks(story: &Story, rng: &mut Rng) -> Vec<[String; 2]> {
    let mut asks = story.asks.clone();
    (0..=rng.below(4))
        .map(|_| asks.swap_remove(rng.below(asks.len())))
        .collect()
}

/// One to four questions about the world and the model.
fn talked(rng: &mut Rng) -> Vec<[String; 2]> {
    (0..=rng.below(4))
        .map(|_| {
            let [question, answer] = if rng.chance(30) {
                talk::small_talk(rng)
            } else {
                knowledge::question(rng)
            };
            [with_greeting(&question, rng), answer]
        })
        .collect()
}

/// The question, sometimes with a few words before it.
fn with_greeting(question: &str, rng: &mut Rng) -> String {
    let greeting = if question.ends_with('?') {
        rng.pick(talk::GREETINGS)
    } else {
        ""
    };
    format!("{greeting}{question}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUM_SEEDS: u64 = 3000;

    fn stories() -> impl Iterator<Item = Story> {
        (0..NUM_SEEDS).map(|index| story(&mut Rng::new(11, index)))
    }

    /// Everything that is said under many seeds.
    fn sayings() -> Vec<String> {
        let mut sayings = Vec::new();
        for index in 0..NUM_SEEDS {
            match document(11, index) {
                Document::Text(text) => sayings.push(text),
                Document::Chat(messages) => {
                    sayings.extend(messages.into_iter().map(|message| message.content));
                }
            }
        }
        sayings
    }

    #[test]
    fn no_slot_stays_open() {
        for saying in sayings() {
            assert!(!saying.contains(['{', '}', '|']), "{saying}");
        }
    }

    #[test]
    fn everything_said_begins_with_a_capital_and_ends_with_a_mark() {
        for saying in sayings() {
            let first = saying.chars().find(char::is_ascii_alphabetic).unwrap();
            assert!(first.is_uppercase(), "{saying}");
            assert!(saying.ends_with(['.', '?', '!', '"']), "{saying}");
            assert!(!saying.contains("  ") && !saying.contains(".."), "{saying}");
        }
    }

    #[test]
    fn a_stands_before_consonants_and_an_before_vowels() {
        for saying in sayings() {
            let words: Vec<_> = saying.split(' ').collect();
            for pair in words.windows(2) {
                let vowel = pair[1].starts_with(['a', 'e', 'i', 'o', 'u']);
                match pair[0].to_lowercase().as_str() {
                    "a" => assert!(!vowel, "{pair:?} in {saying}"),
                    "an" => assert!(vowel, "{pair:?} in {saying}"),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn whoever_is_in_an_answer_is_in_the_story() {
        for story in stories() {
            for [question, answer] in &story.asks {
                for text in [question, answer] {
                    let names = words::GIRLS.iter().chain(words::BOYS);
                    for name in names.filter(|name| text.contains(**name)) {
                        assert!(story.text.contains(name), "{text} in {}", story.text);
                    }
                }
            }
        }
    }

    #[test]
    fn a_question_has_one_answer_in_a_story() {
        for story in stories() {
            for [question, answer] in &story.asks {
                let same = story.asks.iter().filter(|[other, _]| other == question);
                assert!(same.clone().all(|[_, other]| other == answer), "{question}");
            }
        }
    }

    #[test]
    fn a_story_has_five_to_eleven_sentences() {
        for story in stories() {
            let text = story.text.replace(['!', '?'], ".").replace(".\"", "\".");
            let num_sentences = text.matches(". ").count() + 1;
            assert!((5..=11).contains(&num_sentences), "{num_sentences}: {text}");
        }
    }

    #[test]
    fn a_document_is_the_same_every_time_and_another_under_another_seed() {
        let of = |seed| -> Vec<_> { (0..50).map(|index| document(seed, index)).collect() };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn about_one_document_in_32_is_held_out() {
        let num_held_out = (0..NUM_SEEDS)
            .filter(|&index| held_out(&document(1, index)))
            .count();
        assert!((60..=130).contains(&num_held_out), "{num_held_out}");
    }
}
