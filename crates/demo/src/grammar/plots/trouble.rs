//! Stories in which the hero loses a thing, gets wet or is afraid, and somebody helps.

use super::{HAPPY_END, WEATHER, WHERE_AT, WHERE_TO, WHO_FRIEND};
use crate::grammar::story::{Plot, always, ask, sometimes};

/// A thing is lost and found again.
pub(super) const LOST: Plot = Plot {
    topic: "a lost {thing}",
    rows: &[
        &[
            ("thing", "kite"),
            ("weather", "windy"),
            ("place", "hill|field|beach"),
            ("how", "A strong wind carried the kite away."),
            (
                "found",
                "in a tall tree|on the roof of the old mill|behind the barn",
            ),
        ],
        &[
            ("thing", "hat"),
            ("weather", "windy"),
            ("place", "bridge|hill|village|lake"),
            ("how", "The wind blew the hat away."),
            ("found", "on a branch|in a bush|on top of a fence"),
        ],
        &[
            ("thing", "ball"),
            ("weather", "sunny|warm|bright"),
            ("place", "hill|field|meadow|park"),
            ("how", "The ball rolled away and did not stop."),
            ("found", "under a bush|in the tall grass|behind a big stone"),
        ],
        &[
            ("thing", "boat"),
            ("place", "river|lake|pond"),
            ("how", "The boat floated away on the water."),
            (
                "found",
                "between the reeds|under the bridge|next to a white swan",
            ),
        ],
        &[
            ("thing", "key"),
            ("place", "market|village|park|forest"),
            ("how", "The key fell out of a hole in the bag."),
            (
                "found",
                "under the leaves|between two stones|in the tall grass",
            ),
        ],
        &[
            ("thing", "book"),
            ("weather", "sunny|warm"),
            ("place", "park|garden|orchard"),
            (
                "how",
                "{hero} fell asleep, and when {he} woke up, the book was gone.",
            ),
            (
                "found",
                "under a bench|behind an apple tree|in the tall grass",
            ),
        ],
        &[
            ("thing", "bell"),
            ("place", "farm|meadow|hill"),
            ("how", "The bell slipped and rolled down the path."),
            ("found", "under a bush|next to the well|behind a big stone"),
        ],
        &[
            ("thing", "scarf"),
            ("weather", "cold|cool|foggy"),
            ("place", "forest|village|market"),
            ("how", "The scarf slipped off, and {hero} did not feel it."),
            ("found", "on a branch|in a bush|next to the path"),
        ],
    ],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} went to the {place} with {his} {colour} {thing}.",
                "On {a weather} {time}, {hero} took {his} {colour} {thing} to the {place}.",
            ],
            &[
                WHERE_TO,
                WEATHER,
                ask(
                    &[
                        "What did {hero} take to the {place}?",
                        "What did {hero} have?",
                    ],
                    "{hero} had {a colour} {thing}.",
                ),
                ask(
                    &[
                        "What colour was the {thing}?",
                        "What was the colour of the {thing}?",
                    ],
                    "The {thing} was {colour}.",
                ),
            ],
        ),
        sometimes(
            35,
            &[
                "{hero} loved the {thing} very much.",
                "The {thing} was a gift from {his} grandmother.",
            ],
            &[],
        ),
        always(
            &["{how}"],
            &[ask(
                &[
                    "What happened to the {thing}?",
                    "How did {hero} lose the {thing}?",
                ],
                "{how}",
            )],
        ),
        always(
            &[
                "{hero} looked everywhere but could not find it, and {he} was very sad.",
                "{hero} was sad and began to cry.",
            ],
            &[ask(
                &["Why was {hero} sad?", "Why did {hero} feel sad?"],
                "{hero} was sad because the {thing} was lost.",
            )],
        ),
        always(
            &[
                "Then {a ftrait} {fkind} named {friend} came by and said, \"I will help you.\"",
                "\"I will help you look,\" said {friend}, {a ftrait} {fkind}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who helped {hero}?", "Who wanted to help {hero}?"],
                    "{friend} helped {hero}.",
                ),
            ],
        ),
        always(
            &[
                "They looked and looked, and at last they found the {thing} {found}.",
                "Together they found the {thing} {found}.",
            ],
            &[ask(
                &["Where was the {thing}?", "Where did they find the {thing}?"],
                "The {thing} was {found}.",
            )],
        ),
        always(
            &[
                "{hero} was happy and thanked {friend}.",
                "\"Thank you, {friend}!\" said {hero}, and {he} was happy again.",
                "{hero} jumped for joy, and they played together until the sun went down.",
            ],
            &[HAPPY_END],
        ),
    ],
};

/// Rain comes, and somebody opens a door.
pub(super) const STORM: Plot = Plot {
    topic: "a storm",
    rows: &[&[
        ("weather", "cloudy|grey|windy"),
        ("place", "hill|field|forest|meadow|river|lake"),
        ("shelter", "cave|barn|hut|old mill|hollow tree|stable"),
        ("drink", "hot soup|warm milk|sweet tea|hot cocoa"),
    ]],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} was playing {at}.",
                "On {a weather} {time}, {hero} was out for a walk {at}.",
            ],
            &[WHERE_AT, WEATHER],
        ),
        always(
            &[
                "Suddenly the sky turned dark, and it began to rain.",
                "Then big black clouds came, and heavy rain began to fall.",
            ],
            &[ask(
                &["Why did {hero} hide?", "What happened to the weather?"],
                "It began to rain.",
            )],
        ),
        always(
            &[
                "{hero} ran as fast as {he} could and hid in {a shelter}.",
                "{hero} was soon wet and cold, so {he} hid in {a shelter}.",
            ],
            &[ask(
                &[
                    "Where did {hero} hide?",
                    "Where did {hero} hide from the rain?",
                ],
                "{hero} hid in {a shelter}.",
            )],
        ),
        always(
            &[
                "Inside sat {a ftrait} {fkind} named {friend}.",
                "There {he} met {friend}, {a ftrait} {fkind}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who was in the {shelter}?", "Who did {hero} meet?"],
                    "{friend} was in the {shelter}.",
                ),
            ],
        ),
        always(
            &[
                "\"Come in and get dry,\" said {friend}, and gave {hero} some {drink}.",
                "{friend} made a fire and gave {hero} some {drink}.",
            ],
            &[ask(
                &[
                    "What did {friend} give {hero}?",
                    "What did {hero} get from {friend}?",
                ],
                "{friend} gave {hero} some {drink}.",
            )],
        ),
        sometimes(
            50,
            &[
                "They told each other funny stories.",
                "They listened to the rain and sang songs.",
            ],
            &[],
        ),
        always(
            &[
                "When the rain stopped, they saw a rainbow in the sky.",
                "At last the sun came out, and there was a rainbow over the {place}.",
            ],
            &[ask(
                &[
                    "What did they see after the rain?",
                    "What was in the sky after the rain?",
                ],
                "They saw a rainbow.",
            )],
        ),
        always(
            &[
                "{hero} went home with a happy heart.",
                "{hero} was happy to have a new friend.",
            ],
            &[HAPPY_END],
        ),
    ],
};

/// A fear goes away.
pub(super) const FEAR: Plot = Plot {
    topic: "{fear}",
    rows: &[
        &[
            ("fear", "the dark"),
            (
                "scene",
                "When the sun went down, {he} did not want to go outside.",
            ),
            ("help", "{friend} gave {hero} a small lamp."),
            (
                "then",
                "With the lamp, {hero} walked all the way to the river and back.",
            ),
        ],
        &[
            ("fear", "thunder"),
            ("scene", "When a storm came, {he} hid under the bed."),
            ("help", "{friend} sang a funny song with {hero}."),
            (
                "then",
                "They sang so loudly that they did not hear the thunder.",
            ),
        ],
        &[
            ("fear", "deep water"),
            (
                "scene",
                "When the others jumped into the lake, {he} stayed behind.",
            ),
            ("help", "{friend} showed {hero} how to swim."),
            ("then", "Soon {hero} swam across the whole lake."),
        ],
        &[
            ("fear", "high places"),
            (
                "scene",
                "When the others climbed a tree, {he} stayed on the ground.",
            ),
            ("help", "{friend} climbed next to {hero}, step by step."),
            ("then", "From the top {hero} could see the whole village."),
        ],
        &[
            ("fear", "the forest"),
            ("scene", "{He} always took the long way around the trees."),
            ("help", "{friend} walked through the forest with {hero}."),
            ("then", "They saw birds, flowers and soft green moss."),
        ],
        &[
            ("fear", "the snow"),
            ("scene", "When winter came, {he} stayed inside all day."),
            ("help", "{friend} built a snowman with {hero}."),
            (
                "then",
                "They laughed and played until their noses were red.",
            ),
        ],
    ],
    steps: &[
        always(
            &[
                "{hero} was afraid of {fear}.",
                "There was one thing that {hero} was afraid of, and that was {fear}.",
            ],
            &[ask(
                &["What was {hero} afraid of?", "What did {hero} fear?"],
                "{hero} was afraid of {fear}.",
            )],
        ),
        always(&["{scene}"], &[]),
        always(
            &[
                "{A ftrait} {fkind} named {friend} saw this and wanted to help.",
                "One day {hero} told {friend}, {a ftrait} {fkind}, about it.",
            ],
            &[WHO_FRIEND],
        ),
        sometimes(
            50,
            &[
                "\"You are not alone,\" said {friend}.",
                "\"Let us try it together,\" said {friend}.",
            ],
            &[],
        ),
        always(
            &["{help}", "So {help}"],
            &[
                ask(
                    &["How did {friend} help {hero}?", "What did {friend} do?"],
                    "{help}",
                ),
                ask(&["Who helped {hero}?"], "{friend} helped {hero}."),
            ],
        ),
        always(&["{then}"], &[]),
        always(
            &[
                "After that, {hero} was not afraid anymore.",
                "From that day on, {hero} was not afraid of {fear}.",
            ],
            &[
                ask(
                    &[
                        "Is {hero} still afraid of {fear}?",
                        "Was {hero} afraid at the end?",
                    ],
                    "No, {hero} was not afraid anymore.",
                ),
                ask(
                    &["How does the story end?"],
                    "{hero} was not afraid anymore.",
                ),
            ],
        ),
    ],
};
