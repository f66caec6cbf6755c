//! Settings from a TOML file and from flags, each over the one before.

use std::fs;
use std::path::Path;

use train::Settings;

use crate::Error;

/// Settings by key, as a file or flags give them.
pub type SettingsTable = toml::Table;

/// How similar a key must be to be suggested: 1 is equal.
const SIMILAR: f64 = 0.7;

/// The defaults, under the file's keys, under the flags.
pub fn read_settings(
    defaults: &Settings,
    file: Option<&Path>,
    flags: SettingsTable,
) -> Result<Settings, Error> {
    let mut table = to_table(defaults);
    if let Some(path) = file {
        let text = fs::read_to_string(path).map_err(Error::file("read", path))?;
        let keys: SettingsTable =
            text.parse()
                .map_err(|error: toml::de::Error| Error::BadSettings {
                    origin: Some(path.to_owned()),
                    message: in_line(&text, &error),
                })?;
        refuse_unknown(path, &keys)?;
        overlay(&mut table, keys);
        parse(table.clone(), Some(path))?;
    }
    overlay(&mut table, flags);
    let settings = parse(table, None)?;
    settings.check().map_err(train::TrainError::from)?;
    Ok(settings)
}

/// The settings as a file that [`read_settings`] reads back equal.
#[expect(clippy::missing_panics_doc, reason = "plain values always have a text")]
pub fn settings_to_toml(settings: &Settings) -> String {
    toml::to_string(settings).expect("settings are plain values")
}

/// What the parser said and where, in one line.
fn in_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().collect::<Vec<_>>().join(", ");
    let before = error.span().and_then(|span| text.get(..span.start));
    match before {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

/// A length given again replaces every length given before.
fn overlay(table: &mut SettingsTable, keys: SettingsTable) {
    const LENGTHS: [&str; 3] = ["steps", "epochs", "tokens"];
    if LENGTHS.iter().any(|&key| keys.contains_key(key)) {
        for key in LENGTHS {
            table.remove(key);
        }
    }
    table.extend(keys);
}

fn parse(table: SettingsTable, origin: Option<&Path>) -> Result<Settings, Error> {
    let settings = toml::Value::Table(table).try_into::<Settings>();
    settings.map_err(|error| Error::BadSettings {
        origin: origin.map(Path::to_owned),
        message: error.message().to_owned(),
    })
}

fn to_table(settings: &Settings) -> SettingsTable {
    SettingsTable::try_from(settings).expect("settings are plain values")
}

fn refuse_unknown(path: &Path, keys: &SettingsTable) -> Result<(), Error> {
    let every = Settings {
        steps: Some(0),
        epochs: Some(0.0),
        tokens: Some(0),
        eval: Some(String::new()),
        ..Settings::default()
    };
    let known = to_table(&every);
    let Some(key) = keys.keys().find(|key| !known.contains_key(*key)) else {
        return Ok(());
    };
    let likeness = |other: &String| strsim::jaro_winkler(key, other);
    let closest = known
        .keys()
        .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))
        .filter(|other| likeness(other) >= SIMILAR);
    Err(Error::UnknownSetting {
        origin: path.to_owned(),
        key: key.clone(),
        suggestion: closest.cloned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, flags: &str) -> Result<Settings, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        fs::write(&path, text).unwrap();
        read_settings(&Settings::default(), Some(&path), flags.parse().unwrap())
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let settings = read("lr = 0.5\nseq = 64\n", "seq = 32").unwrap();
        assert_eq!((settings.lr, settings.seq), (0.5, 32));
        assert_eq!(settings.global_batch, Settings::default().global_batch);
    }

    #[test]
    fn an_unknown_key_is_refused_with_a_suggestion() {
        let message = read("weight_decay = 0.1", "").unwrap_err().to_string();
        assert!(
            message.contains("unknown setting `weight_decay`"),
            "{message}"
        );
        assert!(
            message.contains("did you mean `weight-decay`?"),
            "{message}"
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_names_the_file() {
        let message = read("seq = \"long\"", "").unwrap_err().to_string();
        assert!(message.contains("run.toml"), "{message}");
    }

    #[test]
    fn a_flag_of_length_replaces_the_files() {
        let settings = read("epochs = 3", "steps = 7").unwrap();
        assert_eq!((settings.steps, settings.epochs), (Some(7), None));
    }

    #[test]
    fn what_is_printed_is_read_back_equal() {
        let settings = Settings {
            steps: Some(3),
            lr: 1e-4,
            ..Settings::default()
        };
        let table = settings_to_toml(&settings).parse().unwrap();
        let back = read_settings(&Settings::default(), None, table).unwrap();
        assert_eq!(back, settings);
    }
}
