//! Prints tables with a border, as the `ipam` commands do in Calico.

use std::io::{self, Write};
use tortie_store::printable::escape_controls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnAlign {
    /// Numbers to the right, everything else to the left.
    Natural,
    Right,
}

/// Prints a table with rules above and below the header and at the end, and centred headers.
pub fn print<const N: usize>(
    out: &mut dyn Write,
    headers: [&str; N],
    align: [ColumnAlign; N],
    rows: &[[String; N]],
) -> io::Result<()> {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| escape_controls(cell).into_owned())).collect();
    let mut widths = headers.map(str::len);
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let rule: String = widths.iter().map(|width| format!("+{}", "-".repeat(width + 2))).collect();
    writeln!(out, "{rule}+")?;
    for (header, width) in headers.iter().zip(widths) {
        write!(out, "| {header:^width$} ")?;
    }
    writeln!(out, "|")?;
    writeln!(out, "{rule}+")?;
    for row in &rows {
        for ((cell, width), align) in row.iter().zip(widths).zip(align) {
            let is_number = !cell.is_empty() && cell.chars().all(|c| c.is_ascii_digit());
            if align == ColumnAlign::Right || is_number {
                write!(out, "| {cell:>width$} ")?;
            } else {
                write!(out, "| {cell:<width$} ")?;
            }
        }
        writeln!(out, "|")?;
    }
    writeln!(out, "{rule}+")
}

/// Formats a number with at most five significant digits, as Go's `%.5g` does.
pub fn five_digits(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{number:.4e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..5).contains(&exponent) {
        let decimals = usize::try_from(4 - exponent).unwrap_or(0);
        return trim_zeros(&format!("{number:.decimals$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim_zeros(mantissa), exponent.abs())
}

/// Removes trailing zeros of the fraction.
fn trim_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_in_go() {
        for (number, text) in [
            (0.0, "0"),
            (64.0, "64"),
            (65536.0, "65536"),
            (262144.0, "2.6214e+05"),
            (100000.0, "1e+05"),
            (18446744073709551616.0, "1.8447e+19"),
            (1.5, "1.5"),
        ] {
            assert_eq!(five_digits(number), text);
        }
    }

    #[test]
    fn a_table_with_a_border() {
        let mut out = Vec::new();
        let rows =
            [["IP Pool".to_owned(), "10.9.0.0/16".to_owned(), "65536".to_owned(), "9 (0%)".to_owned()]];
        let align = [ColumnAlign::Natural, ColumnAlign::Natural, ColumnAlign::Right, ColumnAlign::Right];
        print(&mut out, ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE"], align, &rows).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "+----------+-------------+-----------+------------+\n\
             | GROUPING |    CIDR     | IPS TOTAL | IPS IN USE |\n\
             +----------+-------------+-----------+------------+\n\
             | IP Pool  | 10.9.0.0/16 |     65536 |     9 (0%) |\n\
             +----------+-------------+-----------+------------+\n"
        );
    }
}
