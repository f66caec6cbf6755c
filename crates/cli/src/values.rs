//! Which whole numbers a flag takes.

/// Threads beyond any machine's; so many would only be a slip of the hand.
const MAX_THREADS: usize = 1024;
/// A world has a layout of every rank.
const MAX_RANKS: usize = 4096;
/// No model has more positions.
const MAX_TOKENS: usize = (1 << 31) - 1;

/// Threads to compute on; 0 is all cores.
pub(crate) fn threads(text: &str) -> Result<usize, String> {
    whole(text, 0, MAX_THREADS)
}

/// Ranks of a world to rehearse.
pub(crate) fn num_ranks(text: &str) -> Result<usize, String> {
    whole(text, 1, MAX_RANKS)
}

/// Tokens to generate.
pub(crate) fn num_tokens(text: &str) -> Result<usize, String> {
    whole(text, 1, MAX_TOKENS)
}

fn whole(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("expected a whole number from {least} to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_of_the_range_are_refused_with_it() {
        assert_eq!(threads("0"), Ok(0));
        assert_eq!(threads("1024"), Ok(1024));
        assert_eq!(num_tokens("1"), Ok(1));
        for text in ["1025", "-1", "18446744073709551615", "x", ""] {
            assert!(threads(text).unwrap_err().ends_with("from 0 to 1024"));
        }
        assert!(num_tokens("0").unwrap_err().contains("from 1 to"));
        assert!(num_tokens("18446744073709551615").is_err());
    }
}
