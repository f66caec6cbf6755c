//! Known shapes, by name.

use tensor::Dtype;

use crate::{Family, ModelSpec, RopeKind, RopeSpec, SpecError};

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
    /// All presets, smallest first.
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
    /// Hidden, intermediate, layers, heads, key/value heads, head size, vocabulary.
    sizes: [usize; 7],
    tied: bool,
    max_positions: usize,
    theta: f64,
    /// The `llama3` factor over a context of 8192.
    rope_factor: Option<f64>,
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
        let kind = self
            .rope_factor
            .map_or(RopeKind::Default, |factor| RopeKind::Llama3 {
                factor,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_positions: 8192,
            });
        let spec = ModelSpec {
            family: Family::Llama,
            hidden,
            intermediate,
            num_layers,
            heads,
            kv_heads,
            head_dim,
            vocab,
            rms_norm_eps: 1e-5,
            rope: RopeSpec {
                theta: self.theta,
                kind,
            },
            attention_bias: false,
            mlp_bias: false,
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
}

/// What most rows share: a Llama 2.
const LLAMA_2: Row = Row {
    name: "",
    about: "",
    sizes: [0; 7],
    tied: false,
    max_positions: 4096,
    theta: 10_000.0,
    rope_factor: None,
    bos_eos: (1, 2),
    initializer_range: 0.02,
};

/// What the later ones share: a Llama 3.1.
const LLAMA_3: Row = Row {
    max_positions: 131_072,
    theta: 500_000.0,
    rope_factor: Some(8.0),
    bos_eos: (128_000, 128_001),
    ..LLAMA_2
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
        theta: 100_000.0,
        initializer_range: 0.041_666_668,
        ..LLAMA_2
    },
    Row {
        name: "360m",
        about: "SmolLM2 360M",
        sizes: [960, 2560, 32, 15, 5, 64, 49_152],
        tied: true,
        max_positions: 8192,
        theta: 100_000.0,
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
];
