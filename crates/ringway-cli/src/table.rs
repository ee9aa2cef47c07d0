//! Aligned tables.

/// To which side a column's cells are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

/// Lines of cells under a heading, each column as wide as its widest cell, two spaces apart.
pub(crate) fn table(columns: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let cell = |row: &Vec<String>, i: usize| row.get(i).map_or(0, |c| c.chars().count());
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            rows.iter()
                .map(|r| cell(r, i))
                .max()
                .unwrap_or(0)
                .max(name.len())
        })
        .collect();
    let heading: Vec<String> = columns.iter().map(|c| c.0.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&heading).chain(rows) {
        let cells = row.iter().zip(columns).zip(&widths);
        let cells = cells.map(|((cell, (_, side)), &width)| match side {
            Side::Left => format!("{cell:width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["leaf", "4"], ["a longer one", "1024"]].map(|r| r.map(str::to_owned).to_vec());
        let text = table(&[("group", Side::Left), ("count", Side::Right)], &rows);
        assert_eq!(
            text,
            "group         count\nleaf              4\na longer one   1024\n"
        );
    }
}
