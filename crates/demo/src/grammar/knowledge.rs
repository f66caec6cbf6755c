//! What the demo's model knows of the world: questions and answers without a story.
//!
//! Every function makes one question and its answer from a table; none needs
//! arithmetic.

use super::order::{calendar, count, count_from, next, season};
use super::rng::Rng;
use super::story::{capital, with_article};

/// A question and its answer.
pub(super) type Pair = [String; 2];

/// One kind of question.
type Maker = fn(&mut Rng) -> Pair;

/// Every kind of question, repeated by how much there is to learn.
const MAKERS: &[Maker] = &[
    colour, colour, colour_of, opposite, opposite, animal, animal, animal, animal, sound, next,
    next, count, count, count_from, calendar, season, useful, useful, worker, sense, likeness,
];

/// One question of any kind, and its answer.
pub(super) fn question(rng: &mut Rng) -> Pair {
    let make = rng.pick(MAKERS);
    make(rng)
}

/// A question and its answer as owned texts.
pub(super) fn pair(question: impl Into<String>, answer: impl Into<String>) -> Pair {
    [question.into(), answer.into()]
}

const COLOURS: &[(&str, &str)] = &[
    ("the sky", "blue"),
    ("the sea", "blue"),
    ("grass", "green"),
    ("the sun", "yellow"),
    ("snow", "white"),
    ("milk", "white"),
    ("a swan", "white"),
    ("coal", "black"),
    ("the night", "black"),
    ("a strawberry", "red"),
    ("a cherry", "red"),
    ("a tomato", "red"),
    ("blood", "red"),
    ("a banana", "yellow"),
    ("a lemon", "yellow"),
    ("a carrot", "orange"),
    ("a pumpkin", "orange"),
    ("a leaf", "green"),
    ("a frog", "green"),
    ("a pea", "green"),
    ("a plum", "purple"),
    ("a grape", "purple"),
    ("a pig", "pink"),
    ("a bear", "brown"),
    ("a nut", "brown"),
    ("wood", "brown"),
    ("an elephant", "grey"),
    ("a mouse", "grey"),
];

fn colour(rng: &mut Rng) -> Pair {
    let (thing, colour) = rng.pick(COLOURS);
    let answer = capital(&format!("{thing} is {colour}."));
    match rng.below(5) {
        0 => pair(format!("Tell me the colour of {thing}."), answer),
        1 => pair(
            format!("Is {thing} {colour}?"),
            format!("Yes, {thing} is {colour}."),
        ),
        2 => {
            let other = rng.pick(COLOURS).1;
            let verdict = if other == colour { "Yes" } else { "No" };
            pair(
                format!("Is {thing} {other}?"),
                format!("{verdict}, {thing} is {colour}."),
            )
        }
        _ => pair(format!("What colour is {thing}?"), answer),
    }
}

fn colour_of(rng: &mut Rng) -> Pair {
    let (thing, colour) = rng.pick(COLOURS);
    let question = match rng.below(2) {
        0 => format!("Name something that is {colour}."),
        _ => format!("What is {colour}?"),
    };
    pair(question, capital(&format!("{thing} is {colour}.")))
}

const OPPOSITES: &[(&str, &str)] = &[
    ("hot", "cold"),
    ("big", "small"),
    ("day", "night"),
    ("up", "down"),
    ("happy", "sad"),
    ("fast", "slow"),
    ("old", "young"),
    ("wet", "dry"),
    ("hard", "soft"),
    ("light", "dark"),
    ("open", "closed"),
    ("full", "empty"),
    ("loud", "quiet"),
    ("near", "far"),
    ("long", "short"),
    ("early", "late"),
    ("clean", "dirty"),
    ("good", "bad"),
    ("left", "right"),
    ("inside", "outside"),
    ("strong", "weak"),
    ("rich", "poor"),
    ("sweet", "sour"),
    ("awake", "asleep"),
    ("first", "last"),
    ("high", "low"),
    ("black", "white"),
    ("yes", "no"),
];

fn opposite(rng: &mut Rng) -> Pair {
    let (mut word, mut other) = rng.pick(OPPOSITES);
    if rng.chance(50) {
        (word, other) = (other, word);
    }
    let question = match rng.below(3) {
        0 => format!("Tell me the opposite of {word}."),
        _ => format!("What is the opposite of {word}?"),
    };
    pair(question, format!("The opposite of {word} is {other}."))
}

/// An animal of the world.
#[derive(Clone, Copy)]
struct Animal {
    name: &'static str,
    plural: &'static str,
    food: &'static str,
    home: &'static str,
    young: &'static str,
    legs: &'static str,
    can: &'static str,
    cannot: &'static str,
}

/// A row of [`ANIMALS`].
const fn animal_row(
    [name, plural]: [&'static str; 2],
    food: &'static str,
    home: &'static str,
    young: &'static str,
    legs: &'static str,
    [can, cannot]: [&'static str; 2],
) -> Animal {
    Animal {
        name,
        plural,
        food,
        home,
        young,
        legs,
        can,
        cannot,
    }
}

#[rustfmt::skip]
const ANIMALS: &[Animal] = &[
    animal_row(["cat", "cats"], "fish", "in a house", "kitten", "four", ["climb", "fly"]),
    animal_row(["dog", "dogs"], "meat", "in a house", "puppy", "four", ["run", "fly"]),
    animal_row(["cow", "cows"], "grass", "on a farm", "calf", "four", ["walk", "climb"]),
    animal_row(["pony", "ponies"], "hay", "in a stable", "foal", "four", ["run", "fly"]),
    animal_row(["sheep", "sheep"], "grass", "in a meadow", "lamb", "four", ["walk", "fly"]),
    animal_row(["hen", "hens"], "corn", "in a barn", "chick", "two", ["walk", "swim"]),
    animal_row(["duck", "ducks"], "peas", "by a pond", "duckling", "two", ["swim", "climb"]),
    animal_row(["rabbit", "rabbits"], "carrots", "in a burrow", "bunny", "four", ["jump", "fly"]),
    animal_row(["mouse", "mice"], "cheese", "in a hole", "pup", "four", ["run", "fly"]),
    animal_row(["bear", "bears"], "honey", "in a cave", "cub", "four", ["climb", "fly"]),
    animal_row(["fox", "foxes"], "berries", "in a den", "cub", "four", ["run", "fly"]),
    animal_row(["owl", "owls"], "mice", "in a hollow tree", "owlet", "two", ["fly", "swim"]),
    animal_row(["frog", "frogs"], "flies", "by a pond", "tadpole", "four", ["jump", "fly"]),
    animal_row(["squirrel", "squirrels"], "nuts", "in a tree", "kit", "four", ["climb", "fly"]),
    animal_row(["bird", "birds"], "seeds", "in a nest", "chick", "two", ["fly", "talk"]),
    animal_row(["pig", "pigs"], "corn", "on a farm", "piglet", "four", ["walk", "fly"]),
    animal_row(["goat", "goats"], "leaves", "on a hill", "kid", "four", ["climb", "fly"]),
    animal_row(["lion", "lions"], "meat", "in the grassland", "cub", "four", ["run", "fly"]),
    animal_row(["monkey", "monkeys"], "bananas", "in the jungle", "baby", "two", ["climb", "fly"]),
    animal_row(["elephant", "elephants"], "leaves", "in the grassland", "calf", "four", ["walk", "fly"]),
    animal_row(["fish", "fish"], "worms", "in the water", "", "no", ["swim", "walk"]),
    animal_row(["hedgehog", "hedgehogs"], "worms", "under the leaves", "", "four", ["walk", "fly"]),
    animal_row(["penguin", "penguins"], "fish", "on the ice", "chick", "two", ["swim", "fly"]),
    animal_row(["whale", "whales"], "fish", "in the sea", "calf", "no", ["swim", "walk"]),
    animal_row(["spider", "spiders"], "flies", "in a web", "", "eight", ["climb", "fly"]),
    animal_row(["bee", "bees"], "honey", "in a hive", "", "six", ["fly", "swim"]),
    animal_row(["snail", "snails"], "leaves", "in the garden", "", "no", ["climb", "run"]),
];

fn animal(rng: &mut Rng) -> Pair {
    let animal = rng.pick(ANIMALS);
    let one = with_article(animal.name);
    let first = capital(&one);
    let Animal {
        plural,
        food,
        home,
        young,
        legs,
        can,
        cannot,
        ..
    } = animal;
    let many = capital(plural);
    match rng.below(10) {
        0 => pair(
            format!("What does {one} eat?"),
            format!("{first} eats {food}."),
        ),
        1 => pair(
            format!("What do {plural} eat?"),
            format!("{many} eat {food}."),
        ),
        2 => pair(
            format!("Where does {one} live?"),
            format!("{first} lives {home}."),
        ),
        3 => pair(
            format!("Where do {plural} live?"),
            format!("{many} live {home}."),
        ),
        4 if !young.is_empty() => pair(
            format!("What is the child of {one} called?"),
            format!("The child of {one} is called {}.", with_article(young)),
        ),
        5 => pair(
            format!("How many legs does {one} have?"),
            format!("{first} has {legs} legs."),
        ),
        6 => pair(
            format!("Can {one} {can}?"),
            format!("Yes, {one} can {can}."),
        ),
        7 => pair(
            format!("Can {one} {cannot}?"),
            format!("No, {one} cannot {cannot}, but it can {can}."),
        ),
        8 => pair(
            format!("Name an animal that eats {food}."),
            format!("{first} eats {food}."),
        ),
        _ => pair(
            format!("Tell me about {plural}."),
            format!("{many} live {home} and eat {food}."),
        ),
    }
}

const SOUNDS: &[(&str, &str)] = &[
    ("cat", "meow"),
    ("dog", "woof"),
    ("cow", "moo"),
    ("sheep", "baa"),
    ("hen", "cluck"),
    ("duck", "quack"),
    ("pig", "oink"),
    ("owl", "hoot"),
    ("frog", "croak"),
    ("mouse", "squeak"),
    ("bee", "buzz"),
    ("lion", "roar"),
];

fn sound(rng: &mut Rng) -> Pair {
    let (name, sound) = rng.pick(SOUNDS);
    let one = with_article(name);
    let question = match rng.below(3) {
        0 => format!("Which animal says {sound}?"),
        1 => format!("What does {one} say?"),
        _ => format!("What sound does {one} make?"),
    };
    pair(question, capital(&format!("{one} says {sound}.")))
}

const USES: &[(&str, &str)] = &[
    ("an umbrella", "stay dry in the rain"),
    ("a lamp", "see in the dark"),
    ("a bed", "rest at night"),
    ("a knife", "cut bread"),
    ("a key", "open a door"),
    ("a boat", "cross the water"),
    ("a book", "read stories"),
    ("a spoon", "eat soup"),
    ("a clock", "know the time"),
    ("a basket", "carry things"),
    ("a scarf", "stay warm"),
    ("a broom", "clean the floor"),
    ("a cup", "drink tea"),
    ("a rope", "pull things"),
    ("a bell", "call people"),
    ("a pen", "write words"),
];

fn useful(rng: &mut Rng) -> Pair {
    let (thing, purpose) = rng.pick(USES);
    match rng.below(3) {
        0 => pair(
            format!("What do you need to {purpose}?"),
            format!("You need {thing} to {purpose}."),
        ),
        1 => pair(
            format!("What can you do with {thing}?"),
            format!("With {thing} you can {purpose}."),
        ),
        _ => pair(
            format!("What is {thing} for?"),
            format!("You need {thing} to {purpose}."),
        ),
    }
}

const WORKERS: &[(&str, &str)] = &[
    ("baker", "bakes bread"),
    ("farmer", "works on a farm"),
    ("doctor", "helps sick people"),
    ("teacher", "works in a school"),
    ("cook", "makes soup"),
    ("fisher", "catches fish"),
    ("painter", "paints pictures"),
    ("gardener", "plants flowers"),
    ("singer", "sings songs"),
    ("tailor", "makes clothes"),
    ("sailor", "sails on the sea"),
    ("builder", "builds houses"),
];

fn worker(rng: &mut Rng) -> Pair {
    let (name, work) = rng.pick(WORKERS);
    let one = with_article(name);
    match rng.below(2) {
        0 => pair(format!("Who {work}?"), capital(&format!("{one} {work}."))),
        _ => pair(
            format!("What does {one} do?"),
            capital(&format!("{one} {work}.")),
        ),
    }
}

const SENSES: &[(&str, &str)] = &[
    ("see", "eyes"),
    ("hear", "ears"),
    ("smell", "nose"),
    ("taste", "tongue"),
    ("walk", "feet"),
    ("bite", "teeth"),
    ("think", "head"),
];

fn sense(rng: &mut Rng) -> Pair {
    let (act, part) = rng.pick(SENSES);
    match rng.below(2) {
        0 => pair(
            format!("What do we {act} with?"),
            format!("We {act} with our {part}."),
        ),
        _ => pair(
            format!("What can we do with our {part}?"),
            format!("We can {act} with our {part}."),
        ),
    }
}

const LIKENESSES: &[(&str, &str)] = &[
    ("the sun", "hot and bright"),
    ("the moon", "round and white"),
    ("ice", "cold and hard"),
    ("honey", "sweet and golden"),
    ("a lemon", "sour and yellow"),
    ("a feather", "light and soft"),
    ("a stone", "hard and heavy"),
    ("a bed", "warm and soft"),
    ("the sea", "big and deep"),
    ("the forest", "green and quiet"),
    ("a snail", "small and slow"),
    ("thunder", "loud"),
];

fn likeness(rng: &mut Rng) -> Pair {
    let (thing, like) = rng.pick(LIKENESSES);
    pair(
        format!("What is {thing} like?"),
        capital(&format!("{thing} is {like}.")),
    )
}
