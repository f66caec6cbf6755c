//! Stories that need somebody's advice or strength: a way, a cart, a sleep.

use super::{HAPPY_END, WEATHER, WHO_FRIEND};
use crate::grammar::story::{Plot, always, ask, sometimes};

/// The hero cannot find the way home.
pub(super) const LOST_WAY: Plot = Plot {
    topic: "the way home",
    rows: &[&[
        ("pick", "berries|mushrooms|flowers|nuts"),
        (
            "guide",
            "the river|the stars|the white stones|the sound of the bells|the light of the moon",
        ),
        ("family", "mother|father|grandmother|grandfather"),
    ]],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} went into the forest to look for {pick}.",
                "On {a weather} {time}, {hero} walked into the forest to find some {pick}.",
            ],
            &[
                WEATHER,
                ask(
                    &[
                        "What did {hero} look for in the forest?",
                        "Why did {hero} go into the forest?",
                    ],
                    "{hero} went into the forest to look for {pick}.",
                ),
            ],
        ),
        always(
            &[
                "{He} walked too far and could not find the way home.",
                "But soon all the trees looked the same, and {hero} was lost.",
            ],
            &[ask(
                &["What happened to {hero}?", "What went wrong?"],
                "{hero} was lost in the forest.",
            )],
        ),
        always(
            &[
                "It got dark, and {hero} was afraid.",
                "When it got dark, {hero} sat down and cried.",
            ],
            &[],
        ),
        always(
            &[
                "Then {he} met {friend}, {a ftrait} {fkind}.",
                "{A ftrait} {fkind} named {friend} heard {him}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who helped {hero}?", "Who told {hero} the way home?"],
                    "{friend} helped {hero}.",
                ),
            ],
        ),
        always(
            &[
                "\"Follow {guide},\" said {friend}, \"and you will come home.\"",
                "{friend} said, \"You must follow {guide}.\"",
            ],
            &[ask(
                &[
                    "What did {hero} follow?",
                    "How did {hero} find the way home?",
                ],
                "{hero} followed {guide}.",
            )],
        ),
        always(
            &[
                "{hero} did so and soon saw the lights of home.",
                "So {hero} did, and before long {he} was home.",
            ],
            &[],
        ),
        always(
            &[
                "{His} {family} was waiting at the door and gave {him} a big hug.",
                "At the door stood {his} {family}, and everyone was happy.",
            ],
            &[
                ask(
                    &["Who was waiting for {hero}?", "Who was at the door?"],
                    "The {family} of {hero} was at the door.",
                ),
                HAPPY_END,
            ],
        ),
    ],
};

/// A cart is stuck and many hands move it.
pub(super) const STUCK: Plot = Plot {
    topic: "a cart in the mud",
    rows: &[&[
        ("load", "apples|pumpkins|carrots|pears|milk|flour|corn"),
        ("place", "market|mill|village|farm"),
        ("tool", "rope|board|branch"),
    ]],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} walked down the road to the {place}.",
                "On {a weather} {time}, {hero} was on {his} way to the {place}.",
            ],
            &[
                WEATHER,
                ask(
                    &[
                        "Where did {hero} want to go?",
                        "What place was {hero} going to?",
                    ],
                    "{hero} was on the way to the {place}.",
                ),
            ],
        ),
        always(
            &[
                "There {he} saw {friend}, {a ftrait} {fkind}, with a cart full of {load}.",
                "{He} met {a ftrait} {fkind} named {friend}, who had a cart full of {load}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &[
                        "What was in the cart?",
                        "What did {friend} have in the cart?",
                    ],
                    "The cart was full of {load}.",
                ),
            ],
        ),
        always(
            &[
                "The cart was stuck in the mud and did not move.",
                "But one wheel was stuck in the mud.",
            ],
            &[ask(
                &[
                    "What was wrong with the cart?",
                    "Why did the cart not move?",
                ],
                "The cart was stuck in the mud.",
            )],
        ),
        sometimes(
            50,
            &[
                "\"Please help me,\" said {friend}.",
                "{hero} pushed and pushed, but {he} was not strong enough.",
            ],
            &[],
        ),
        always(
            &[
                "{hero} had a good idea and went to get {a tool}.",
                "\"I know what to do,\" said {hero}, and {he} found {a tool}.",
            ],
            &[ask(
                &["What did {hero} use?", "What did {hero} need for the cart?"],
                "{hero} used {a tool}.",
            )],
        ),
        always(
            &[
                "Together they pulled until the wheel was free.",
                "With the {tool} they moved the cart out of the mud.",
            ],
            &[],
        ),
        always(
            &[
                "{friend} was thankful and gave {hero} some {load}.",
                "\"Thank you!\" said {friend}, and gave {hero} some {load}.",
            ],
            &[ask(
                &[
                    "What did {friend} give {hero}?",
                    "How did {friend} thank {hero}?",
                ],
                "{friend} gave {hero} some {load}.",
            )],
        ),
        sometimes(
            70,
            &[
                "{hero} was proud and happy.",
                "{hero} walked on and sang a happy song.",
            ],
            &[HAPPY_END],
        ),
    ],
};

/// The hero cannot sleep.
pub(super) const AWAKE: Plot = Plot {
    topic: "a long night",
    rows: &[&[
        (
            "noise",
            "the wind was so loud|the moon was so bright|the rain was so loud|the room was so dark",
        ),
        ("count", "stars|sheep|clouds|leaves"),
        ("number", "ten|twenty|twelve|nine|eleven|thirty"),
        (
            "dream",
            "the sea|a flying boat|a big cake|the summer|a golden bird",
        ),
    ]],
    steps: &[
        always(
            &[
                "One night {hero} could not sleep because {noise}.",
                "It was night, but {noise} that {hero} could not sleep.",
            ],
            &[ask(
                &["Why could {hero} not sleep?", "Why was {hero} awake?"],
                "{hero} could not sleep because {noise}.",
            )],
        ),
        always(
            &[
                "{He} turned to the left and to the right, but {he} was still awake.",
                "{He} opened {his} eyes and looked at the window.",
            ],
            &[],
        ),
        always(
            &[
                "Then {he} heard the voice of {friend}, {a ftrait} {fkind}.",
                "{A ftrait} {fkind} named {friend} came to the window.",
            ],
            &[
                WHO_FRIEND,
                ask(&["Who helped {hero}?"], "{friend} helped {hero}."),
            ],
        ),
        always(
            &[
                "\"Close your eyes and count {count},\" said {friend}.",
                "{friend} said, \"You must count {count}.\"",
            ],
            &[ask(
                &[
                    "What did {hero} count?",
                    "What did {friend} tell {hero} to count?",
                ],
                "{hero} counted {count}.",
            )],
        ),
        always(
            &[
                "{hero} counted to {number} and fell asleep.",
                "At {number} {hero} was fast asleep.",
            ],
            &[ask(
                &["How far did {hero} count?", "When did {hero} fall asleep?"],
                "{hero} counted to {number}.",
            )],
        ),
        always(
            &[
                "That night {he} had a dream about {dream}.",
                "In {his} dream {he} saw {dream}.",
            ],
            &[ask(
                &["What did {hero} dream about?", "What was the dream about?"],
                "{hero} had a dream about {dream}.",
            )],
        ),
        sometimes(
            60,
            &[
                "In the morning {hero} felt well and happy.",
                "The next morning {he} told {friend} about it and laughed.",
            ],
            &[],
        ),
    ],
};
