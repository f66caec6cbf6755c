//! Stories in which the hero does somebody good.

use super::{HAPPY_END, WEATHER, WHERE_TO, WHO_FRIEND};
use crate::grammar::story::{Plot, always, ask, sometimes};

/// A hungry animal is fed.
pub(super) const HUNGRY: Plot = Plot {
    topic: "a hungry {fkind}",
    rows: &[
        &[("fkind", "rabbit"), ("food", "carrots")],
        &[("fkind", "mouse"), ("food", "cheese")],
        &[("fkind", "bear"), ("food", "honey")],
        &[("fkind", "squirrel"), ("food", "nuts")],
        &[("fkind", "cat"), ("food", "fish")],
        &[("fkind", "dog"), ("food", "meat")],
        &[("fkind", "duck"), ("food", "peas")],
        &[("fkind", "goose"), ("food", "corn")],
        &[("fkind", "pony"), ("food", "hay")],
        &[("fkind", "goat"), ("food", "leaves")],
        &[("fkind", "lamb"), ("food", "grass")],
        &[("fkind", "fox"), ("food", "berries")],
    ],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} went to the {place} with a basket full of {food}.",
                "On {a weather} {time}, {hero} took a basket of {food} to the {place}.",
            ],
            &[
                WHERE_TO,
                WEATHER,
                ask(
                    &[
                        "What was in the basket?",
                        "What did {hero} have in the basket?",
                    ],
                    "The basket was full of {food}.",
                ),
            ],
        ),
        always(
            &[
                "There {he} met {a ftrait} {fkind} named {friend}.",
                "By the path sat {friend}, {a ftrait} {fkind}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who did {hero} meet?", "Who was by the path?"],
                    "{hero} met {friend}, {a ftrait} {fkind}.",
                ),
            ],
        ),
        always(
            &[
                "{friend} was sad because {fhe} was hungry.",
                "\"I am so hungry,\" said {friend} sadly.",
            ],
            &[ask(
                &["Why was {friend} sad?", "What was wrong with {friend}?"],
                "{friend} was hungry.",
            )],
        ),
        always(
            &[
                "{hero} opened the basket and gave {friend} some {food}.",
                "\"Take some {food},\" said {hero}, and opened the basket.",
            ],
            &[ask(
                &["What did {hero} give {friend}?", "What did {friend} eat?"],
                "{hero} gave {friend} some {food}.",
            )],
        ),
        always(
            &[
                "{friend} ate and ate until {fhe} was full.",
                "{friend} ate everything and smiled.",
            ],
            &[],
        ),
        sometimes(
            50,
            &[
                "\"You are very kind,\" said {friend}.",
                "\"Thank you, {hero}!\" said {friend}.",
            ],
            &[],
        ),
        always(
            &[
                "From that day on, {hero} and {friend} were good friends.",
                "{hero} was happy, because now {he} had a new friend.",
            ],
            &[ask(
                &[
                    "Were {hero} and {friend} friends at the end?",
                    "How does the story end?",
                ],
                "{hero} and {friend} were friends at the end.",
            )],
        ),
    ],
};

/// Something good tastes better together.
pub(super) const SHARE: Plot = Plot {
    topic: "sharing",
    rows: &[
        &[
            ("treat", "red apple|sweet pear|big orange"),
            ("found", "under a tree|in the grass|next to the path"),
        ],
        &[
            ("treat", "pot of honey|jar of jam|piece of cake"),
            ("found", "on a bench|on a table|on the wall"),
        ],
        &[
            ("treat", "basket of plums|bag of nuts|loaf of bread"),
            ("found", "by the road|next to the well|behind the barn"),
        ],
    ],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} found {a treat} {found}.",
                "On {a weather} {time}, {hero} saw {a treat} {found}.",
            ],
            &[
                WEATHER,
                ask(
                    &["What did {hero} find?", "What was {found}?"],
                    "{hero} found {a treat}.",
                ),
                ask(
                    &[
                        "Where was the {treat}?",
                        "Where did {hero} find the {treat}?",
                    ],
                    "The {treat} was {found}.",
                ),
            ],
        ),
        sometimes(
            60,
            &[
                "\"I will eat it all alone,\" {he} thought.",
                "It looked so good that {hero} wanted to eat it at once.",
            ],
            &[],
        ),
        always(
            &[
                "Then {he} saw {friend}, {a ftrait} {fkind}, sitting all alone.",
                "But then {a ftrait} {fkind} named {friend} came by.",
            ],
            &[WHO_FRIEND],
        ),
        always(
            &[
                "{friend} was sad because {fhe} had nothing to eat.",
                "\"I have nothing to eat today,\" said {friend}.",
            ],
            &[ask(
                &["Why was {friend} sad?", "What was wrong with {friend}?"],
                "{friend} had nothing to eat.",
            )],
        ),
        always(
            &[
                "So {hero} gave half of the {treat} to {friend}.",
                "\"Then we will share the {treat},\" said {hero}.",
            ],
            &[ask(
                &["What did {hero} do?", "What did {hero} share?"],
                "{hero} shared the {treat} with {friend}.",
            )],
        ),
        always(
            &[
                "They sat down together and ate.",
                "They ate together and talked about many things.",
            ],
            &[],
        ),
        always(
            &[
                "\"It tastes better with a friend,\" said {hero}, and {he} was happy.",
                "{hero} was happy and thought that sharing is a good thing.",
            ],
            &[HAPPY_END],
        ),
    ],
};

/// A gift that cost nothing.
pub(super) const BIRTHDAY: Plot = Plot {
    topic: "a birthday",
    rows: &[
        &[
            ("gift", "shiny shell|smooth stone"),
            ("place", "beach|river|lake"),
        ],
        &[
            ("gift", "blue feather|white feather"),
            ("place", "meadow|forest|pond"),
        ],
        &[
            ("gift", "yellow flower|pink rose"),
            ("place", "garden|meadow|park"),
        ],
        &[
            ("gift", "golden leaf|pretty nut"),
            ("place", "forest|park|orchard"),
        ],
    ],
    steps: &[
        always(
            &[
                "It was the birthday of {friend}, {a ftrait} {fkind} and a good friend of {hero}.",
                "{His} best friend was {friend}, {a ftrait} {fkind}, and today was the birthday of {friend}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Whose birthday was it?", "Who had a birthday?"],
                    "It was the birthday of {friend}.",
                ),
            ],
        ),
        always(
            &[
                "But {hero} had no gift and no money.",
                "{hero} wanted to give {friend} something, but {he} had no money.",
            ],
            &[ask(
                &["What was the problem?", "What did {hero} not have?"],
                "{hero} had no gift.",
            )],
        ),
        always(
            &[
                "So {he} went to the {place} and looked for something pretty.",
                "So {hero} walked to the {place} to look for a gift.",
            ],
            &[WHERE_TO],
        ),
        always(
            &[
                "There {he} found {a gift}.",
                "After a while {hero} saw {a gift} and picked it up.",
            ],
            &[
                ask(&["What did {hero} find?"], "{hero} found {a gift}."),
                ask(&["What was the gift?"], "The gift was {a gift}."),
            ],
        ),
        sometimes(
            50,
            &[
                "{He} put it in a small box.",
                "{He} put it in a box with {a colour} ribbon.",
            ],
            &[],
        ),
        always(
            &[
                "{friend} looked at the {gift} and laughed with joy.",
                "When {friend} saw the {gift}, {fhe} smiled.",
            ],
            &[ask(
                &["Did {friend} like the gift?", "How did {friend} feel?"],
                "{friend} liked the {gift} very much.",
            )],
        ),
        always(
            &[
                "\"This is the best gift of all,\" said {friend}.",
                "They ate cake and danced until the moon came up.",
                "\"Thank you, {hero}!\" said {friend}, and gave {him} a hug.",
            ],
            &[],
        ),
    ],
};

/// A friend is ill.
pub(super) const SICK: Plot = Plot {
    topic: "a sick friend",
    rows: &[&[
        ("remedy", "soup|tea|bread|milk|honey|cake"),
        (
            "cheer",
            "sang a song|told a story|read a book|played a song",
        ),
        ("place", "lake|beach|park|forest|meadow|hill"),
    ]],
    steps: &[
        always(
            &[
                "{His} friend {friend}, {a ftrait} {fkind}, was sick and had to stay in bed.",
                "One {weather} {time}, {hero} heard that {friend}, {a ftrait} {fkind}, was sick.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who was sick?", "Who had to stay in bed?"],
                    "{friend} was sick.",
                ),
            ],
        ),
        always(
            &[
                "{hero} wanted to make {friend} happy.",
                "\"I must go and help,\" said {hero}.",
            ],
            &[],
        ),
        always(
            &[
                "{He} took some {remedy} and went to the house of {friend}.",
                "So {hero} put some {remedy} in a basket and went to see {friend}.",
            ],
            &[ask(
                &[
                    "What did {hero} bring?",
                    "What did {hero} take to {friend}?",
                ],
                "{hero} took some {remedy} to {friend}.",
            )],
        ),
        always(
            &[
                "Then {he} sat by the bed and {cheer}.",
                "{hero} sat down next to {friend} and {cheer}.",
            ],
            &[ask(
                &[
                    "What did {hero} do by the bed?",
                    "How did {hero} help {friend}?",
                ],
                "{hero} sat by the bed and {cheer}.",
            )],
        ),
        sometimes(
            50,
            &[
                "{friend} smiled and soon fell asleep.",
                "\"I feel better now,\" said {friend}.",
            ],
            &[],
        ),
        always(
            &[
                "The next morning {friend} was well again, and they went to the {place}.",
                "After two days {friend} was well, and they played together {at}.",
            ],
            &[ask(
                &[
                    "Where did they go when {friend} was well?",
                    "Where were they at the end?",
                ],
                "They went to the {place}.",
            )],
        ),
    ],
};
