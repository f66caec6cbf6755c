//! Everything that can be wrong with a `config.json`.

/// A configuration that does not describe a model this program can run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is not JSON.
    #[error("config is not valid JSON")]
    NotJson {
        /// What the parser found.
        #[source]
        source: serde_json::Error,
    },
    /// The text is JSON, but not an object.
    #[error("config is a JSON {found}, expected an object")]
    NotAnObject {
        /// The kind of JSON value found.
        found: &'static str,
    },
    /// A key without which the model's shape is unknown.
    #[error("config has no `{key}`")]
    Missing {
        /// The key, with the keys around it.
        key: String,
    },
    /// A key whose value has the wrong type or lies outside what makes sense.
    #[error("config key `{key}` is {found}, expected {expected}")]
    BadValue {
        /// The key, with the keys around it.
        key: String,
        /// What is accepted.
        expected: &'static str,
        /// The value as JSON.
        found: String,
    },
    /// A value with a meaning that this program does not implement.
    #[error("config key `{key}` is {found}, supported: {supported}")]
    Unsupported {
        /// The key, with the keys around it.
        key: String,
        /// The value as JSON.
        found: String,
        /// What works.
        supported: String,
    },
    /// Two sizes that do not fit together.
    #[error("config keys do not fit together: `{key}` is {value}, {rule}")]
    Inconsistent {
        /// The key that breaks the rule.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The rule that it breaks.
        rule: String,
    },
    /// The model is larger than 64 bits can count.
    #[error("config describes a model with more bytes than 63 bits can count")]
    TooLarge,
    /// No preset has this name.
    #[error("unknown preset `{name}`{suggestion}, known: {known}", suggestion = did_you_mean(closest.as_ref()))]
    UnknownPreset {
        /// The name asked for.
        name: String,
        /// The known name that looks most like it, if any does.
        closest: Option<String>,
        /// All names, separated by commas.
        known: String,
    },
}

fn did_you_mean(closest: Option<&String>) -> String {
    closest.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"))
}
