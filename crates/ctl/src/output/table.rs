//! Tables with elastic columns, laid out as Go's tabwriter does: a column is as wide as its widest cell plus
//! the padding, but at least the minimum width, and the last column is padded like the others.

use tortie_store::printable::escape_controls;

const MIN_WIDTH: usize = 5;
const PADDING: usize = 3;

/// The widths of a table's columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnWidths(Vec<usize>);

impl ColumnWidths {
    /// Widens the columns to fit one more row; rows already printed keep their layout.
    pub fn widen(&mut self, row: &[String]) {
        if self.0.len() < row.len() {
            self.0.resize(row.len(), MIN_WIDTH);
        }
        for (width, cell) in self.0.iter_mut().zip(row) {
            *width = (*width).max(escape_controls(cell).chars().count() + PADDING);
        }
    }

    pub fn line(&self, row: &[String]) -> String {
        let mut line = String::new();
        for (width, cell) in self.0.iter().zip(row) {
            let cell = escape_controls(cell);
            line.push_str(&cell);
            line.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
        }
        line.push('\n');
        line
    }
}

/// Lays out rows as a table; the first row contains the headings.
pub fn layout(rows: &[Vec<String>]) -> String {
    let mut widths = ColumnWidths::default();
    rows.iter().for_each(|row| widths.widen(row));
    rows.iter().map(|row| widths.line(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|&c| c.to_owned()).collect()
    }

    #[test]
    fn every_cell_is_padded_the_last_one_too() {
        let rows = [row(&["NAME", "CIDR", "X"]), row(&["pool-a", "10.0.0.0/8", ""])];
        assert_eq!(layout(&rows), "NAME     CIDR         X    \npool-a   10.0.0.0/8        \n");
    }

    #[test]
    fn width_is_counted_in_characters() {
        let rows = [row(&["A", "B"]), row(&["größe", "x"])];
        assert_eq!(layout(&rows), "A       B    \ngröße   x    \n");
    }

    #[test]
    fn cells_cannot_steer_a_terminal_or_add_rows() {
        let rows = [row(&["NAME", "B"]), row(&["x\x1b[2J\nfake", "y"])];
        assert_eq!(layout(&rows), "NAME               B    \nx\\u001b[2J\\nfake   y    \n");
    }
}
