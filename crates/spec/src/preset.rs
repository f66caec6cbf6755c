//! Known shapes, by name.

use tensor::Dtype;

use crate::{
    Activation, Arrangement, Family, ModelSpec, Positions, RopeKind, RopeSpec, SlidingWindow,
    SpecError,
};

/// A known shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Preset {
    /// The name to ask for it.
    pub name: &'static str,
    /// Whose shape it is.
    pub about: &'static str,
    /// The shape.
    pub spec: ModelSpec,
}

impl Preset {
    /// All presets, by family, smallest first.
    pub fn all() -> Vec<Self> {
        ROWS.iter().map(Row::preset).collect()
    }

    /// The preset of this name.
    pub fn by_name(name: &str) -> Result<Self, SpecError> {
        ROWS.iter()
            .find(|row| row.name.eq_ignore_ascii_case(name))
            .map(Row::preset)
            .ok_or_else(|| unknown(name))
    }

    /// The text of its `config.json`.
    pub fn config_json(&self) -> String {
        self.spec.config_json()
    }
}

fn unknown(name: &str) -> SpecError {
    const ALIKE: f64 = 0.7;
    let closest = ROWS
        .iter()
        .map(|row| {
            (
                strsim::jaro_winkler(row.name, &name.to_lowercase()),
                row.name,
            )
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > ALIKE);
    let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
    SpecError::UnknownPreset {
        name: name.to_owned(),
        closest: closest.map(|(_, name)| name.to_owned()),
        known: names.join(", "),
    }
}

/// A preset, as short as a table needs it.
struct Row {
    name: &'static str,
    about: &'static str,
    family: Family,
    /// Hidden, intermediate, layers, heads, key/value heads, head size, vocabulary.
    sizes: [usize; 7],
    tied: bool,
    max_positions: usize,
    norm_eps: f32,
    /// The base of rotary positions; none for linear biases.
    theta: Option<f64>,
    /// The `llama3` factor over a context of 8192.
    rope_factor: Option<f64>,
    /// The window of every block.
    window: Option<usize>,
    arrangement: Arrangement,
    /// Whether query, key and value have biases, and all other projections.
    biases: [bool; 2],
    bos_eos: (u32, u32),
    initializer_range: f32,
}

impl Row {
    fn preset(&self) -> Preset {
        let [
            hidden,
            intermediate,
            num_layers,
            heads,
            kv_heads,
            head_dim,
            vocab,
        ] = self.sizes;
        let spec = ModelSpec {
            family: self.family,
            hidden,
            intermediate,
            num_layers,
            heads,
            kv_heads,
            head_dim,
            vocab,
            norm_eps: self.norm_eps,
            positions: self.positions(),
            window: self.window.map(|size| SlidingWindow {
                size,
                blocks: vec![true; num_layers],
            }),
            activation: match self.family {
                Family::Llama | Family::Mistral | Family::Qwen2 => Activation::Silu,
                Family::Gemma => Activation::GeluTanh,
                Family::Falcon => Activation::GeluErf,
            },
            arrangement: self.arrangement,
            qkv_bias: self.biases[0],
            output_bias: self.biases[1],
            mlp_bias: self.biases[1],
            tied: self.tied,
            max_positions: self.max_positions,
            bos: Some(self.bos_eos.0),
            eos: vec![self.bos_eos.1],
            dtype: Some(Dtype::BF16),
            initializer_range: self.initializer_range,
        };
        Preset {
            name: self.name,
            about: self.about,
            spec,
        }
    }

    fn positions(&self) -> Positions {
        let Some(theta) = self.theta else {
            return Positions::Alibi;
        };
        let kind = self
            .rope_factor
            .map_or(RopeKind::Default, |factor| RopeKind::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_positions: 8192,
            });
        Positions::Rope(RopeSpec { theta, kind })
    }
}

/// What most rows share: a Llama 2.
const LLAMA_2: Row = Row {
    name: "",
    about: "",
    family: Family::Llama,
    sizes: [0; 7],
    tied: false,
    max_positions: 4096,
    norm_eps: 1e-5,
    theta: Some(10_000.0),
    rope_factor: None,
    window: None,
    arrangement: Arrangement::Sequential,
    biases: [false; 2],
    bos_eos: (1, 2),
    initializer_range: 0.02,
};

/// What the later ones share: a Llama 3.1.
const LLAMA_3: Row = Row {
    max_positions: 131_072,
    theta: Some(500_000.0),
    rope_factor: Some(8.0),
    bos_eos: (128_000, 128_001),
    ..LLAMA_2
};

const MISTRAL: Row = Row {
    family: Family::Mistral,
    max_positions: 32_768,
    window: Some(4096),
    ..LLAMA_2
};

const QWEN2: Row = Row {
    family: Family::Qwen2,
    max_positions: 131_072,
    norm_eps: 1e-6,
    theta: Some(1_000_000.0),
    biases: [true, false],
    bos_eos: (151_643, 151_643),
    ..LLAMA_2
};

const GEMMA: Row = Row {
    family: Family::Gemma,
    tied: true,
    max_positions: 8192,
    norm_eps: 1e-6,
    bos_eos: (2, 1),
    ..LLAMA_2
};

/// A Falcon 7B: one key/value head, one norm over attention and MLP.
const FALCON: Row = Row {
    family: Family::Falcon,
    tied: true,
    max_positions: 2048,
    arrangement: Arrangement::ParallelOneNorm,
    bos_eos: (11, 11),
    ..LLAMA_2
};

/// A Falcon 40B: groups of heads, a norm for each of attention and MLP.
const FALCON_NEW: Row = Row {
    arrangement: Arrangement::ParallelTwoNorms,
    ..FALCON
};

/// A Falcon RW: attention before the MLP, linear biases.
const FALCON_RW: Row = Row {
    theta: None,
    arrangement: Arrangement::Sequential,
    biases: [true; 2],
    bos_eos: (1, 2),
    ..FALCON
};

const ROWS: &[Row] = &[
    Row {
        name: "tiny",
        about: "a few hundred thousand parameters, for trying things out",
        sizes: [64, 192, 3, 4, 2, 16, 512],
        tied: true,
        max_positions: 1024,
        ..LLAMA_2
    },
    Row {
        name: "135m",
        about: "SmolLM2 135M",
        sizes: [576, 1536, 30, 9, 3, 64, 49_152],
        tied: true,
        max_positions: 8192,
        theta: Some(100_000.0),
        initializer_range: 0.041_666_668,
        ..LLAMA_2
    },
    Row {
        name: "360m",
        about: "SmolLM2 360M",
        sizes: [960, 2560, 32, 15, 5, 64, 49_152],
        tied: true,
        max_positions: 8192,
        theta: Some(100_000.0),
        ..LLAMA_2
    },
    Row {
        name: "1b",
        about: "TinyLlama 1.1B",
        sizes: [2048, 5632, 22, 32, 4, 64, 32_000],
        max_positions: 2048,
        ..LLAMA_2
    },
    Row {
        name: "llama3.2-1b",
        about: "Llama 3.2 1B",
        sizes: [2048, 8192, 16, 32, 8, 64, 128_256],
        tied: true,
        rope_factor: Some(32.0),
        ..LLAMA_3
    },
    Row {
        name: "3b",
        about: "Llama 3.2 3B",
        sizes: [3072, 8192, 28, 24, 8, 128, 128_256],
        tied: true,
        rope_factor: Some(32.0),
        ..LLAMA_3
    },
    Row {
        name: "7b",
        about: "Llama 2 7B",
        sizes: [4096, 11_008, 32, 32, 32, 128, 32_000],
        ..LLAMA_2
    },
    Row {
        name: "8b",
        about: "Llama 3.1 8B",
        sizes: [4096, 14_336, 32, 32, 8, 128, 128_256],
        ..LLAMA_3
    },
    Row {
        name: "13b",
        about: "Llama 2 13B",
        sizes: [5120, 13_824, 40, 40, 40, 128, 32_000],
        ..LLAMA_2
    },
    Row {
        name: "70b",
        about: "Llama 3.1 70B",
        sizes: [8192, 28_672, 80, 64, 8, 128, 128_256],
        ..LLAMA_3
    },
    Row {
        name: "405b",
        about: "Llama 3.1 405B",
        sizes: [16_384, 53_248, 126, 128, 8, 128, 128_256],
        ..LLAMA_3
    },
    Row {
        name: "tiny-mistral",
        about: "a small Mistral with a window of 32, for trying things out",
        sizes: [64, 192, 3, 4, 2, 16, 512],
        max_positions: 1024,
        window: Some(32),
        ..MISTRAL
    },
    Row {
        name: "mistral-7b",
        about: "Mistral 7B v0.1",
        sizes: [4096, 14_336, 32, 32, 8, 128, 32_000],
        ..MISTRAL
    },
    Row {
        name: "tiny-qwen2",
        about: "a small Qwen2, for trying things out",
        sizes: [64, 192, 3, 4, 2, 16, 512],
        tied: true,
        max_positions: 1024,
        bos_eos: (1, 2),
        ..QWEN2
    },
    Row {
        name: "qwen2-0.5b",
        about: "Qwen2 0.5B",
        sizes: [896, 4864, 24, 14, 2, 64, 151_936],
        tied: true,
        ..QWEN2
    },
    Row {
        name: "qwen2-7b",
        about: "Qwen2 7B",
        sizes: [3584, 18_944, 28, 28, 4, 128, 152_064],
        ..QWEN2
    },
    Row {
        name: "tiny-gemma",
        about: "a small Gemma, for trying things out",
        sizes: [64, 192, 3, 4, 1, 24, 512],
        max_positions: 1024,
        ..GEMMA
    },
    Row {
        name: "gemma-2b",
        about: "Gemma 2B",
        sizes: [2048, 16_384, 18, 8, 1, 256, 256_000],
        ..GEMMA
    },
    Row {
        name: "gemma-7b",
        about: "Gemma 7B",
        sizes: [3072, 24_576, 28, 16, 16, 256, 256_000],
        ..GEMMA
    },
    Row {
        name: "tiny-falcon",
        about: "a small Falcon like the 7B, for trying things out",
        sizes: [64, 256, 3, 4, 1, 16, 512],
        ..FALCON
    },
    Row {
        name: "tiny-falcon-new",
        about: "a small Falcon like the 40B, for trying things out",
        sizes: [64, 256, 3, 4, 2, 16, 512],
        ..FALCON_NEW
    },
    Row {
        name: "tiny-falcon-rw",
        about: "a small Falcon like the RW 1B, for trying things out",
        sizes: [64, 256, 3, 4, 4, 16, 512],
        ..FALCON_RW
    },
    Row {
        name: "falcon-rw-1b",
        about: "Falcon RW 1B",
        sizes: [2048, 8192, 24, 32, 32, 64, 50_304],
        ..FALCON_RW
    },
    Row {
        name: "falcon-7b",
        about: "Falcon 7B",
        sizes: [4544, 18_176, 32, 71, 1, 64, 65_024],
        ..FALCON
    },
    Row {
        name: "falcon-40b",
        about: "Falcon 40B",
        sizes: [8192, 32_768, 60, 128, 8, 64, 65_024],
        ..FALCON_NEW
    },
    Row {
        name: "falcon-180b",
        about: "Falcon 180B",
        sizes: [14_848, 59_392, 80, 232, 8, 64, 65_024],
        ..FALCON_NEW
    },
];
