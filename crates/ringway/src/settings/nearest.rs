//! "Did you mean ...?"

/// A remedy for a name that is not known: the nearest known one, or all of them when none is near. All names are
/// shown with `prefix`.
pub(super) fn hint<'a>(
    prefix: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    match nearest(name, known.clone()) {
        Some(near) => format!("did you mean `{prefix}{near}`?"),
        None => {
            let all: Vec<_> = known.map(|name| format!("{prefix}{name}")).collect();
            format!("known are {}.", all.join(", "))
        }
    }
}

/// The known name with the fewest typing errors to `name`, if they are few enough to be typing errors.
fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    known
        .map(|k| (distance(&name, &k.to_ascii_lowercase()), k))
        .min()
        .filter(|&(d, k)| d <= 1 + name.len().min(k.len()) / 4)
        .map(|(_, k)| k)
}

/// Letters to insert, delete, replace or swap with their neighbour (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "abc", 3),
            ("ring", "ring", 0),
            ("rnig", "ring", 1),
            ("timeot", "timeout", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), d, "{a} {b}");
            assert_eq!(distance(b, a), d, "{b} {a}");
        }
    }

    #[test]
    fn only_near_names_are_offered() {
        let known = ["timeout", "buffer_size", "port"];
        assert_eq!(
            nearest("bufer_size", known.into_iter()),
            Some("buffer_size")
        );
        assert_eq!(nearest("TIMEOUT", known.into_iter()), Some("timeout"));
        assert_eq!(nearest("colour", known.into_iter()), None);
        assert!(hint("", "colour", known.into_iter()).contains("timeout, buffer_size, port"));
    }
}
