//! Golden files lie beside the script that made them.

/// Endings of what can make a golden file.
const SCRIPTS: &[&str] = &[".py", ".sh", ".rs"];

/// Endings of what needs no script.
const NOTES: &[&str] = &[".md", ".gitignore"];

/// Complaints about golden files without a script in their folder, or in one
/// above it below `testdata/`.
pub fn orphans(files: &[String]) -> Vec<String> {
    let is_script = |file: &str| SCRIPTS.iter().any(|ending| file.ends_with(ending));
    let is_note = |file: &str| NOTES.iter().any(|ending| file.ends_with(ending));
    let has_script = |folder: &str| {
        let mut scripts = files.iter().filter(|file| is_script(file));
        scripts.any(|file| folder_of(file) == folder)
    };
    files
        .iter()
        .filter(|file| !is_script(file) && !is_note(file))
        .filter(|file| !folders_above(file).any(has_script))
        .map(|file| format!("{file}: no script beside it says how it was made"))
        .collect()
}

fn folder_of(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// The file's folder and those above it, up to and with `testdata`.
fn folders_above(file: &str) -> impl Iterator<Item = &str> {
    let folders = std::iter::successors(Some(folder_of(file)), |folder| {
        folder.rsplit_once('/').map(|(above, _)| above)
    });
    folders.take_while(|folder| folder.contains("testdata"))
}
