//! Stories in which something is made, grown or played together.

use super::{WEATHER, WHO_FRIEND};
use crate::grammar::story::{Plot, always, ask, sometimes};

/// The first try fails, the second does not.
pub(super) const BUILD: Plot = Plot {
    topic: "{a made}",
    rows: &[
        &[
            ("verb", "build"),
            ("made", "boat"),
            ("stuff", "wood"),
            ("place", "river|lake"),
            ("mishap", "the boat was full of water"),
            ("fix", "closed all the holes"),
            ("joy", "the boat sailed across the water"),
        ],
        &[
            ("verb", "make"),
            ("made", "kite"),
            ("stuff", "paper"),
            ("weather", "windy"),
            ("place", "hill|field"),
            ("mishap", "the kite fell to the ground"),
            ("fix", "gave it a longer tail"),
            ("joy", "the kite flew high in the sky"),
        ],
        &[
            ("verb", "build"),
            ("made", "snowman"),
            ("stuff", "snow"),
            ("weather", "cold"),
            ("place", "garden|field|park"),
            ("mishap", "the head fell off"),
            ("fix", "made the head smaller"),
            ("joy", "the snowman looked very fine"),
        ],
        &[
            ("verb", "build"),
            ("made", "bird house"),
            ("stuff", "wood"),
            ("place", "garden|orchard"),
            ("mishap", "the roof fell down"),
            ("fix", "used longer nails"),
            ("joy", "two birds moved in"),
        ],
        &[
            ("verb", "build"),
            ("made", "tower"),
            ("stuff", "stones"),
            ("place", "beach|river"),
            ("mishap", "the tower fell over"),
            ("fix", "put the big stones at the bottom"),
            ("joy", "the tower stood still"),
        ],
        &[
            ("verb", "bake"),
            ("made", "cake"),
            ("stuff", "flour and honey"),
            ("place", "kitchen"),
            ("mishap", "the cake was black"),
            ("fix", "baked it for a shorter time"),
            ("joy", "the cake was soft and sweet"),
        ],
        &[
            ("verb", "build"),
            ("made", "bridge"),
            ("stuff", "logs"),
            ("place", "river"),
            ("mishap", "the bridge broke in the middle"),
            ("fix", "took stronger logs"),
            ("joy", "everyone could cross the river"),
        ],
        &[
            ("verb", "make"),
            ("made", "swing"),
            ("stuff", "rope and wood"),
            ("place", "garden|orchard"),
            ("mishap", "the rope broke"),
            ("fix", "took a stronger rope"),
            ("joy", "the swing went high into the air"),
        ],
        &[
            ("verb", "make"),
            ("made", "lamp"),
            ("stuff", "glass and paper"),
            ("place", "village|kitchen"),
            ("mishap", "the wind blew the light out"),
            ("fix", "closed the top"),
            ("joy", "the lamp was as bright as a star"),
        ],
    ],
    steps: &[
        always(
            &[
                "{hero} had a good friend, {a ftrait} {fkind} named {friend}.",
                "{His} friend was {a ftrait} {fkind} named {friend}.",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who was the friend of {hero}?", "Who helped {hero}?"],
                    "{friend} was the friend of {hero}.",
                ),
            ],
        ),
        always(
            &[
                "One {weather} {time}, they met {at} to {verb} {a made}.",
                "On {a weather} {time}, they wanted to {verb} {a made} {at}.",
            ],
            &[
                WEATHER,
                ask(
                    &["What did they want to {verb}?", "What did they {verb}?"],
                    "They wanted to {verb} {a made}.",
                ),
                ask(&["Where were {hero} and {friend}?"], "They were {at}."),
            ],
        ),
        always(
            &[
                "They made it from {stuff}.",
                "They took {stuff} and began to work.",
            ],
            &[ask(
                &[
                    "What was the {made} made from?",
                    "What did they need for the {made}?",
                ],
                "The {made} was made from {stuff}.",
            )],
        ),
        always(
            &["But at first {mishap}.", "They worked hard, but {mishap}."],
            &[ask(
                &["What went wrong?", "What happened at first?"],
                "{mishap}.",
            )],
        ),
        sometimes(
            60,
            &[
                "\"Let us try again,\" said {friend}.",
                "{hero} was sad, but {friend} said, \"Do not give up.\"",
            ],
            &[],
        ),
        always(
            &[
                "So they {fix}, and this time {joy}.",
                "They {fix}, and then {joy}.",
            ],
            &[ask(
                &["What did they do then?", "How did they make it better?"],
                "They {fix}.",
            )],
        ),
        always(
            &[
                "{hero} and {friend} were very proud.",
                "\"We did it!\" said {hero}, and they danced for joy.",
            ],
            &[ask(
                &["How did they feel at the end?", "How does the story end?"],
                "They were proud and happy.",
            )],
        ),
    ],
};

/// A seed takes its time.
pub(super) const PLANT: Plot = Plot {
    topic: "a small seed",
    rows: &[
        &[("plant", "pumpkin"), ("joy", "made soup from it")],
        &[("plant", "sunflower"), ("joy", "sat under it all summer")],
        &[("plant", "rose"), ("joy", "looked at it every day")],
        &[("plant", "melon"), ("joy", "ate it on a hot day")],
        &[("plant", "cherry tree"), ("joy", "ate the sweet cherries")],
        &[("plant", "apple tree"), ("joy", "picked the red apples")],
        &[("plant", "tomato plant"), ("joy", "ate the red tomatoes")],
    ],
    steps: &[
        always(
            &[
                "One spring morning, {hero} found a small seed and put it in the ground.",
                "In spring, {hero} got a small seed and planted it in the garden.",
            ],
            &[ask(
                &[
                    "What did {hero} plant?",
                    "What did {hero} put in the ground?",
                ],
                "{hero} planted a small seed.",
            )],
        ),
        always(
            &[
                "Every day {he} gave it water.",
                "{He} gave it water every morning.",
            ],
            &[ask(
                &[
                    "What did {hero} give the seed?",
                    "What did {hero} do every day?",
                ],
                "{hero} gave the seed water.",
            )],
        ),
        always(
            &[
                "For a long time nothing happened, and {hero} was sad.",
                "But nothing came up, and {hero} was sad.",
            ],
            &[ask(
                &["Why was {hero} sad?"],
                "{hero} was sad because nothing happened.",
            )],
        ),
        always(
            &[
                "\"You must wait,\" said {friend}, {a ftrait} {fkind}.",
                "Then {a ftrait} {fkind} named {friend} said, \"Good things need time.\"",
            ],
            &[
                WHO_FRIEND,
                ask(
                    &["Who talked to {hero}?", "Who told {hero} to wait?"],
                    "{friend} told {hero} to wait.",
                ),
            ],
        ),
        always(
            &[
                "At last, after a warm rain, a green leaf came out of the ground.",
                "Then the sun came out, and a green leaf looked out of the ground.",
            ],
            &[],
        ),
        always(
            &[
                "It grew and grew, and it became {a plant}.",
                "After a long time, the little seed was {a plant}.",
            ],
            &[ask(
                &["What did the seed become?", "What came out of the seed?"],
                "The seed became {a plant}.",
            )],
        ),
        always(
            &[
                "{hero} and {friend} {joy} and were happy.",
                "Together they {joy}.",
            ],
            &[ask(
                &["What did they do at the end?", "How does the story end?"],
                "They {joy}.",
            )],
        ),
    ],
};

/// Hide and seek.
pub(super) const HIDE: Plot = Plot {
    topic: "hide and seek",
    rows: &[&[
        ("place", "garden|park|farm|orchard|village|meadow"),
        ("number", "ten|twenty|five|twelve"),
        (
            "hiding",
            "behind the barn|under a bench|behind an oak tree|in a big basket|under the leaves|behind the well",
        ),
        (
            "wrong",
            "behind the wall|in the shed|behind the gate|under the cart",
        ),
        (
            "other",
            "in the bushes|behind the fence|under the bridge|behind a big stone",
        ),
        ("sign", "a quiet laugh|a little sneeze|a funny sound"),
    ]],
    steps: &[
        always(
            &[
                "One {weather} {time}, {hero} played hide and seek with {friend}, {a ftrait} {fkind}.",
                "On {a weather} {time}, {hero} met {friend}, {a ftrait} {fkind}, to play hide and seek.",
            ],
            &[
                WHO_FRIEND,
                WEATHER,
                ask(
                    &["What did they play?", "What game did they play?"],
                    "They played hide and seek.",
                ),
                ask(
                    &["Who played with {hero}?", "Who did {hero} play with?"],
                    "{hero} played with {friend}.",
                ),
            ],
        ),
        always(
            &[
                "{hero} closed {his} eyes and counted to {number}.",
                "{hero} counted to {number} and said, \"Here I come!\"",
            ],
            &[ask(
                &[
                    "How far did {hero} count?",
                    "To what number did {hero} count?",
                ],
                "{hero} counted to {number}.",
            )],
        ),
        always(
            &[
                "{He} looked {wrong}, but {friend} was not there.",
                "First {hero} looked {wrong}, but nobody was there.",
            ],
            &[ask(
                &["Where did {hero} look first?"],
                "{hero} looked {wrong} first.",
            )],
        ),
        sometimes(
            60,
            &[
                "{He} looked {other}, but nobody was there.",
                "Then {he} looked {other}, but {he} saw only a butterfly.",
            ],
            &[],
        ),
        always(
            &["Then {hero} heard {sign}.", "But then there was {sign}."],
            &[ask(&["What did {hero} hear?"], "{hero} heard {sign}.")],
        ),
        always(
            &[
                "{friend} was {hiding}!",
                "It was {friend}, who was {hiding}.",
            ],
            &[ask(
                &["Where was {friend}?", "Where did {friend} hide?"],
                "{friend} was {hiding}.",
            )],
        ),
        always(
            &[
                "\"I found you!\" said {hero}, and they both laughed.",
                "They laughed and played again until the sun went down.",
            ],
            &[],
        ),
    ],
};
