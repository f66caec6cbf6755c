//! Rust source split into code and comments, as far as the rules need it.
//!
//! Both come back with every line in its place, so that line numbers hold.
//! Strings are blanked in the code: a rule about a word is about its use, not
//! about a text that mentions it.

/// What a character of source belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Text,
}

/// The source with comments and the contents of strings blanked.
pub fn code_of(source: &str) -> String {
    keep(source, Kind::Code)
}

/// The source with everything but comments blanked.
pub fn comments_of(source: &str) -> String {
    keep(source, Kind::Comment)
}

fn keep(source: &str, wanted: Kind) -> String {
    let mut kept = String::with_capacity(source.len());
    let mut rest = source;
    while !rest.is_empty() {
        let (kind, len) = next_piece(rest);
        let (piece, tail) = rest.split_at(len);
        if kind == wanted {
            kept.push_str(piece);
        } else {
            kept.extend(piece.chars().map(|c| if c == '\n' { c } else { ' ' }));
        }
        rest = tail;
    }
    kept
}

/// The kind and length of what `source` starts with.
fn next_piece(source: &str) -> (Kind, usize) {
    if source.starts_with("//") {
        return (Kind::Comment, source.find('\n').unwrap_or(source.len()));
    }
    if source.starts_with("/*") {
        return (Kind::Comment, block_comment_len(source));
    }
    if let Some(len) = raw_string_len(source) {
        return (Kind::Text, len);
    }
    if source.starts_with('"') {
        return (Kind::Text, quoted_len(source, '"'));
    }
    if source.starts_with('\'') && is_char(source) {
        return (Kind::Text, quoted_len(source, '\''));
    }
    (Kind::Code, plain_len(source))
}

/// One character, or a whole word, so that the `r` of `for` starts no string.
fn plain_len(source: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let word = source.find(|c| !is_word(c)).unwrap_or(source.len());
    let first = source.chars().next().map_or(1, char::len_utf8);
    word.max(first)
}

fn block_comment_len(source: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < source.len() {
        let rest = &source[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    source.len()
}

/// `r"..."`, `r#"..."#` and so on, with a `b` or `c` before.
fn raw_string_len(source: &str) -> Option<usize> {
    let after = source.trim_start_matches(['b', 'c']).strip_prefix('r')?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let text = after[hashes..].strip_prefix('"')?;
    let prefix = source.len() - text.len();
    if prefix > hashes + 3 {
        return None;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    let text_len = text.find(&end).map_or(text.len(), |at| at + end.len());
    Some(prefix + text_len)
}

/// Whether a quote starts a character and not a lifetime.
fn is_char(source: &str) -> bool {
    let mut chars = source.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) => true,
        (Some(_), second) => second == Some('\''),
        _ => false,
    }
}

fn quoted_len(source: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in source.char_indices().skip(1) {
        if is_escaped {
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if c == quote {
            return at + c.len_utf8();
        }
    }
    source.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn splits(source: &str, code: &str, comments: &str) {
        let squeezed = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(code_of(source)), code);
        assert_eq!(squeezed(comments_of(source)), comments);
    }

    #[test]
    fn comments_and_strings_are_told_from_code() {
        splits("let a = 1; // one", "let a = 1;", "// one");
        splits("a /* b /* c */ d */ e", "a e", "/* b /* c */ d */");
        splits(r#"f("// no", 'x', '"') // yes"#, "f( , , )", "// yes");
        splits(r##"f(r#"a " // b"#, br"c") // d"##, "f( , )", "// d");
        splits(
            "fn f<'a>(x: &'a u8) { for r in b {} }",
            "fn f<'a>(x: &'a u8) { for r in b {} }",
            "",
        );
        splits(r#"f("\"", '\'') //"#, "f( , )", "//");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let source = "a\n/* b\nc */ d\n\"e\nf\" g";
        assert_eq!(code_of(source).lines().count(), source.lines().count());
        assert_eq!(code_of(source).lines().nth(4).map(str::trim), Some("g"));
    }
}
