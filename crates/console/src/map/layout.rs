//! Places of boxes: columns by the direction of traffic, clients on the left. A box that the last picture had keeps its
//! place; a new one takes the free place nearest to the boxes that it talks to.

use super::TrafficLine;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of columns.
const MAX_COLUMNS: u32 = 8;
/// Rows from which another column is used, so that the picture stays about as wide as high.
const MAX_ROWS: u32 = 25;
/// Rounds after which the columns of cyclic traffic stay as they are.
const MAX_ROUNDS: usize = 8;

/// Column and row of a box, from the top left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct BoxPlace {
    pub column: u32,
    pub row: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MapLayout {
    pub places: BTreeMap<String, BoxPlace>,
}

impl MapLayout {
    pub(super) fn arrange(
        boxes: &BTreeSet<String>,
        lines: &[TrafficLine],
        last: Option<&MapLayout>,
    ) -> MapLayout {
        let mut layout = MapLayout::default();
        if let Some(last) = last {
            let kept = last.places.iter().filter(|(name, _)| boxes.contains(*name));
            layout.places.extend(kept.map(|(name, place)| (name.clone(), *place)));
        }
        let mut taken: BTreeSet<BoxPlace> = layout.places.values().copied().collect();
        let columns = choose_columns(boxes, lines);
        for name in boxes {
            if layout.places.contains_key(name) {
                continue;
            }
            let wanted = columns.get(name.as_str()).copied().unwrap_or_default();
            let place = find_free_place(wanted, &taken);
            taken.insert(place);
            layout.places.insert(name.clone(), place);
        }
        layout
    }
}

/// Returns the first free place of a column, or of the nearest column with one.
fn find_free_place(wanted: u32, taken: &BTreeSet<BoxPlace>) -> BoxPlace {
    let mut columns: Vec<u32> = (0..MAX_COLUMNS).collect();
    columns.sort_by_key(|column| (column.abs_diff(wanted), *column));
    let free_in =
        |column: u32| (0..MAX_ROWS).map(|row| BoxPlace { column, row }).find(|place| !taken.contains(place));
    // There are as many places as boxes, so the last resort is never used with the limit of boxes.
    columns.into_iter().find_map(free_in).unwrap_or(BoxPlace { column: MAX_COLUMNS, row: 0 })
}

/// Returns the column of each box: one more than that of its clients. Cycles end after a number of rounds.
fn choose_columns<'b>(boxes: &'b BTreeSet<String>, lines: &'b [TrafficLine]) -> BTreeMap<&'b str, u32> {
    let mut columns: BTreeMap<&str, u32> = boxes.iter().map(|name| (name.as_str(), 0)).collect();
    // For traffic in both directions, only the heavier direction determines the order.
    let weights: BTreeMap<(&str, &str), u64> = lines
        .iter()
        .map(|line| ((line.from.as_str(), line.to.as_str()), line.allowed.saturating_add(line.denied)))
        .collect();
    let is_main = |line: &&TrafficLine| {
        let back = weights.get(&(line.to.as_str(), line.from.as_str())).copied().unwrap_or_default();
        let forth = line.allowed.saturating_add(line.denied);
        line.from != line.to && (forth, &line.to) > (back, &line.from)
    };
    let main: Vec<&TrafficLine> = lines.iter().filter(is_main).collect();
    for _ in 0..MAX_ROUNDS {
        let mut is_changed = false;
        for line in &main {
            let after = columns.get(line.from.as_str()).map_or(0, |column| column + 1).min(MAX_COLUMNS - 1);
            if let Some(column) = columns.get_mut(line.to.as_str())
                && *column < after
            {
                *column = after;
                is_changed = true;
            }
        }
        if !is_changed {
            break;
        }
    }
    columns
}
