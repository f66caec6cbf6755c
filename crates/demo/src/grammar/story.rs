//! How a plot becomes a story and the questions that belong to it.
//!
//! A plot is a table: rows of what can fill its slots and steps of sentences with
//! slots. A question stands beside the step that tells its answer and is asked only
//! when that step was told, so that every answer can be read in the story.
//!
//! ```text
//! {hero}      the slot's text             {He}        the same with a capital
//! {a colour}  with `a` or `an` before it  x|y|z       one of three, by chance
//! ```

use std::collections::BTreeMap;

use super::rng::Rng;
use super::words;

/// Questions that mean the same, and their answer.
#[derive(Debug)]
pub(super) struct Ask {
    /// Ways to ask.
    pub questions: &'static [&'static str],
    /// The answer, one full sentence.
    pub answer: &'static str,
}

/// One sentence or two of a story, in several wordings.
#[derive(Debug)]
pub(super) struct Step {
    /// How often of a hundred times the step is told.
    pub percent: u8,
    /// Wordings; each tells everything that `asks` asks for.
    pub lines: &'static [&'static str],
    /// What can be asked once this was told.
    pub asks: &'static [Ask],
}

/// Slots that belong together.
pub(super) type Row = &'static [(&'static str, &'static str)];

/// A kind of story.
#[derive(Debug)]
pub(super) struct Plot {
    /// What the story is about, for `Tell me a story about ...`.
    pub topic: &'static str,
    /// One of these is chosen.
    pub rows: &'static [Row],
    /// Told in order.
    pub steps: &'static [Step],
}

/// A step that is always told.
pub(super) const fn always(lines: &'static [&'static str], asks: &'static [Ask]) -> Step {
    sometimes(100, lines, asks)
}

/// A step that is told `percent` times of a hundred.
pub(super) const fn sometimes(
    percent: u8,
    lines: &'static [&'static str],
    asks: &'static [Ask],
) -> Step {
    Step {
        percent,
        lines,
        asks,
    }
}

/// Questions with their answer.
pub(super) const fn ask(questions: &'static [&'static str], answer: &'static str) -> Ask {
    Ask { questions, answer }
}

/// A story told, and what can be asked about it.
#[derive(Debug, Clone)]
pub(super) struct Story {
    /// The story, one paragraph.
    pub text: String,
    /// Ways to ask for this story.
    pub requests: Vec<String>,
    /// Questions and answers in the story's order.
    pub asks: Vec<[String; 2]>,
}

/// Every story begins with one of these.
const OPENING: Step = always(
    &[
        "Once upon a time there was {a trait} {kind} named {hero}.",
        "There once was {a trait} {kind} called {hero}.",
        "{hero} was {a trait} {kind}.",
        "In a land far away lived {a trait} {kind} named {hero}.",
        "Not long ago there was {a trait} {kind} whose name was {hero}.",
        "This is the story of {hero}, {a trait} {kind}.",
    ],
    &[
        ask(
            &["Who was {hero}?", "Who is {hero}?"],
            "{hero} was {a trait} {kind}.",
        ),
        ask(
            &[
                "What was the name of the {kind}?",
                "What was the {kind} called?",
            ],
            "The {kind} was called {hero}.",
        ),
    ],
);

/// Told in some stories after the opening.
const HOME: Step = sometimes(
    35,
    &["{hero} lived {home}.", "{He} lived {home}."],
    &[ask(
        &["Where did {hero} live?", "Where was the home of {hero}?"],
        "{hero} lived {home}.",
    )],
);

/// Wordings of a wish for a story.
const REQUESTS: &[&str] = &[
    "Tell me a story.",
    "Please tell me a story about {a kind}.",
    "Tell me a story about {a kind} named {hero}.",
    "Can you tell me a story about {a kind} called {hero}?",
    "Tell me a story about {hero} and {friend}.",
    "Tell me a story about {a kind} and {a fkind}.",
    "Tell me a story about {topic}.",
    "I want to hear a story about {topic}.",
    "Tell me a story about {a kind} and {topic}.",
];

/// Tells one story of `plot`.
pub(super) fn tell(plot: &Plot, rng: &mut Rng) -> Story {
    let scene = Scene::cast(plot, rng);
    let mut sentences = Vec::new();
    let mut asks = Vec::new();
    for step in [&OPENING, &HOME].into_iter().chain(plot.steps) {
        if !rng.chance(step.percent) {
            continue;
        }
        sentences.push(scene.sentence(rng.pick(step.lines)));
        for ask in step.asks {
            let question = scene.sentence(rng.pick(ask.questions));
            asks.push([question, scene.sentence(ask.answer)]);
        }
    }
    Story {
        text: sentences.join(" "),
        requests: REQUESTS.iter().map(|line| scene.sentence(line)).collect(),
        asks,
    }
}

/// The slots of one story.
#[derive(Debug, Default)]
struct Scene {
    slots: BTreeMap<&'static str, String>,
}

impl Scene {
    /// Chooses a row, then everything that the row leaves open.
    fn cast(plot: &Plot, rng: &mut Rng) -> Self {
        let mut scene = Self::default();
        scene.set("topic", plot.topic);
        for &(slot, choices) in rng.pick(plot.rows) {
            scene.choose(slot, choices, rng);
        }
        scene.choose("weather", words::WEATHER, rng);
        scene.choose("time", words::TIMES, rng);
        scene.choose("colour", words::COLOURS, rng);
        scene.choose("place", words::OPEN_PLACES, rng);
        scene.go_there();
        scene.cast_friend(rng);
        scene.cast_hero(rng);
        scene
    }

    /// Fills a slot with one of `choices`, unless the row did so.
    fn choose(&mut self, slot: &'static str, choices: &'static str, rng: &mut Rng) {
        if !self.slots.contains_key(slot) {
            let choices: Vec<_> = choices.split('|').collect();
            self.set(slot, rng.pick(&choices));
        }
    }

    fn set(&mut self, slot: &'static str, text: &str) {
        self.slots.insert(slot, text.to_owned());
    }

    fn get(&self, slot: &str) -> &str {
        self.slots.get(slot).map_or("", String::as_str)
    }

    /// Sets `at` to the words for being at the place.
    fn go_there(&mut self) {
        let place = self.get("place");
        let at = words::PLACES.iter().find(|(name, _)| *name == place);
        let at = at.map_or("", |(_, at)| at);
        self.set("at", at);
    }

    /// The friend is of the kind that the row asks for, most often an animal.
    fn cast_friend(&mut self, rng: &mut Rng) {
        let girl = rng.chance(50);
        let child = !self.slots.contains_key("fkind") && rng.chance(15);
        let kind = match (child, girl) {
            (true, true) => "girl",
            (true, false) => "boy",
            (false, _) => rng.pick(words::ANIMALS).0,
        };
        self.choose("fkind", kind, rng);
        let traits = if child {
            words::TRAITS
        } else {
            words::OLD_TRAITS
        };
        self.set("ftrait", rng.pick(traits));
        self.name(["friend", "fhe", "fhis", "fhim"], girl, rng);
    }

    /// The hero shares neither name nor kind with the friend.
    fn cast_hero(&mut self, rng: &mut Rng) {
        let girl = rng.chance(50);
        let child = if girl { "girl" } else { "boy" };
        let (kind, home) = if rng.chance(30) && self.get("fkind") != child {
            (child, rng.pick(words::HOUSES))
        } else {
            let taken = self.get("fkind");
            let free: Vec<_> = words::ANIMALS
                .iter()
                .filter(|(kind, _)| *kind != taken)
                .copied()
                .collect();
            rng.pick(&free)
        };
        self.set("kind", kind);
        self.set("home", home);
        let free: Vec<_> = words::TRAITS
            .iter()
            .filter(|word| **word != self.get("ftrait"))
            .copied()
            .collect();
        let word = rng.pick(&free);
        self.set("trait", word);
        self.name(["hero", "he", "his", "him"], girl, rng);
    }

    /// Gives a name that nobody in the story has, and its pronouns.
    fn name(&mut self, slots: [&'static str; 4], girl: bool, rng: &mut Rng) {
        let (names, pronouns) = if girl {
            (words::GIRLS, words::SHE)
        } else {
            (words::BOYS, words::HE)
        };
        let free: Vec<_> = names
            .iter()
            .filter(|name| **name != self.get("friend"))
            .copied()
            .collect();
        let name = rng.pick(&free);
        self.set(slots[0], name);
        for (slot, pronoun) in slots[1..].iter().zip(pronouns) {
            self.set(slot, pronoun);
        }
    }

    /// Fills a template and begins it with a capital.
    fn sentence(&self, template: &str) -> String {
        capital(&self.fill(template))
    }

    /// Fills every slot of a template; a slot's text may have slots itself.
    fn fill(&self, template: &str) -> String {
        let mut text = String::new();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once('{') {
            let (slot, tail) = after.split_once('}').unwrap_or((after, ""));
            text.push_str(before);
            text.push_str(&self.slot(slot));
            rest = tail;
        }
        text + rest
    }

    fn slot(&self, slot: &str) -> String {
        if let Some(noun) = slot.strip_prefix("a ") {
            return with_article(&self.slot(noun));
        }
        match self.slots.get(slot) {
            Some(text) => self.fill(text),
            None if slot != slot.to_lowercase() => capital(&self.slot(&slot.to_lowercase())),
            // Left in sight, for the test that no text holds a brace.
            None => format!("{{{slot}}}"),
        }
    }
}

/// `text` with its first letter as a capital, also behind a quotation mark.
pub(super) fn capital(text: &str) -> String {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(0);
    let (before, rest) = text.split_at(at);
    let mut rest = rest.to_owned();
    if let Some(first) = rest.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    before.to_owned() + &rest
}

/// `noun` with `a` or `an` before it.
pub(super) fn with_article(noun: &str) -> String {
    let article = if noun.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {noun}")
}
