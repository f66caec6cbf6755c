//! Who and what the stories can be about.

/// The pronouns of a character: he, his, him.
pub(super) type Pronouns = [&'static str; 3];

/// Pronouns of the names in [`GIRLS`].
pub(super) const SHE: Pronouns = ["she", "her", "her"];
/// Pronouns of the names in [`BOYS`].
pub(super) const HE: Pronouns = ["he", "his", "him"];

/// Names that go with [`SHE`].
pub(super) const GIRLS: &[&str] = &[
    "Mia", "Lily", "Anna", "Lucy", "Rosa", "Ella", "Nora", "Ivy", "Daisy", "Hazel", "Molly",
    "Ruby", "Clara", "Emma",
];

/// Names that go with [`HE`].
pub(super) const BOYS: &[&str] = &[
    "Tom", "Ben", "Sam", "Max", "Leo", "Tim", "Finn", "Oscar", "Hugo", "Jack", "Otto", "Felix",
    "Noah", "Theo",
];

/// Animals that can be a character, each with its home.
pub(super) const ANIMALS: &[(&str, &str)] = &[
    ("fox", "in a den under the hill"),
    ("rabbit", "in a warm burrow"),
    ("bear", "in a big cave"),
    ("mouse", "in a hole in the wall"),
    ("owl", "in a hollow tree"),
    ("duck", "by a quiet pond"),
    ("cat", "on a small farm"),
    ("dog", "on a small farm"),
    ("frog", "by a green pond"),
    ("hedgehog", "under a pile of leaves"),
    ("squirrel", "high up in an oak tree"),
    ("goose", "in a red barn"),
    ("lamb", "in a green meadow"),
    ("pony", "in a warm stable"),
    ("beaver", "by the river"),
    ("goat", "on a green hill"),
];

/// Where a boy or a girl lives.
pub(super) const HOUSES: &[&str] = &[
    "in a small house by the sea",
    "in a little house near the forest",
    "in a quiet village",
    "in a house with a blue door",
];

/// What a hero is like.
pub(super) const TRAITS: &[&str] = &[
    "little", "young", "brave", "shy", "kind", "clever", "curious", "merry", "quiet", "friendly",
    "gentle", "funny",
];

/// What a grown animal that helps is like.
pub(super) const OLD_TRAITS: &[&str] = &[
    "old", "wise", "friendly", "kind", "gentle", "cheerful", "busy", "clever", "careful",
];

/// Places, each with the words for being there.
pub(super) const PLACES: &[(&str, &str)] = &[
    ("hill", "on the hill"),
    ("field", "in the field"),
    ("forest", "in the forest"),
    ("beach", "on the beach"),
    ("garden", "in the garden"),
    ("river", "by the river"),
    ("pond", "by the pond"),
    ("lake", "by the lake"),
    ("meadow", "in the meadow"),
    ("farm", "on the farm"),
    ("park", "in the park"),
    ("village", "in the village"),
    ("market", "at the market"),
    ("mill", "by the mill"),
    ("bridge", "on the bridge"),
    ("orchard", "in the orchard"),
    ("kitchen", "in the kitchen"),
];

/// Where a story plays when its plot does not say.
pub(super) const OPEN_PLACES: &str =
    "hill|field|forest|beach|garden|river|lake|meadow|park|orchard";

/// Weather when the plot does not say.
pub(super) const WEATHER: &str = "sunny|warm|cloudy|windy|cold|bright|foggy|cool";

/// When the day of the story begins.
pub(super) const TIMES: &str = "morning|afternoon|day";

/// Colours of things.
pub(super) const COLOURS: &str = "red|blue|green|yellow|white|black|brown|orange|purple|pink";
