//! The kinds of stories there are.

mod help;
mod kindness;
mod making;
mod trouble;

use super::story::{Ask, Plot, ask};

/// Every plot, equally likely.
pub(super) const PLOTS: &[&Plot] = &[
    &trouble::LOST,
    &trouble::STORM,
    &trouble::FEAR,
    &help::LOST_WAY,
    &help::STUCK,
    &help::AWAKE,
    &kindness::HUNGRY,
    &kindness::SHARE,
    &kindness::BIRTHDAY,
    &kindness::SICK,
    &making::BUILD,
    &making::PLANT,
    &making::HIDE,
];

/// Asked where the hero went to the place.
const WHERE_TO: Ask = ask(
    &["Where did {hero} go?", "What place did {hero} go to?"],
    "{hero} went to the {place}.",
);

/// Asked where the story happens at the place.
const WHERE_AT: Ask = ask(
    &["Where was {hero}?", "Where was {hero} when the rain began?"],
    "{hero} was {at}.",
);

/// Asked where the weather was told.
const WEATHER: Ask = ask(
    &["What was the weather like?", "What kind of day was it?"],
    "It was {a weather} {time}.",
);

/// Asked where the friend was introduced.
const WHO_FRIEND: Ask = ask(
    &["Who was {friend}?", "Who is {friend}?"],
    "{friend} was {a ftrait} {fkind}.",
);

/// Asked where the hero ends happy.
const HAPPY_END: Ask = ask(
    &["How did {hero} feel at the end?", "How does the story end?"],
    "{hero} was happy at the end.",
);
