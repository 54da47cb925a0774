//! Formats values as Go's fmt package does, because scripts parse the output of calicoctl.

use serde_json::Value;

/// Formats a float as `%v` does: the shortest digits that parse to the same value, with an exponent below
/// 1e-4 and from 1e6 on.
pub fn float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() };
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(exponent) if (-4..6).contains(&exponent) => format!("{value}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
        }
        Err(_) => scientific,
    }
}

/// Formats any value as `%v` does. An object is printed as a map; callers format structs themselves.
pub fn value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) if n.is_f64() => n.as_f64().map(float).unwrap_or_default(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => s.clone(),
        Value::Array(items) => list(items.iter().map(self::value)),
        Value::Object(fields) => {
            let mut entries: Vec<_> = fields.iter().map(|(k, v)| format!("{k}:{}", self::value(v))).collect();
            entries.sort();
            format!("map[{}]", entries.join(" "))
        }
    }
}

/// Formats a list: `[a b]`.
pub fn list(items: impl IntoIterator<Item = String>) -> String {
    format!("[{}]", items.into_iter().collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn floats_as_go_prints_them() {
        for (number, text) in [
            (0.0, "0"),
            (50.0, "50"),
            (1000.0, "1000"),
            (999999.0, "999999"),
            (1_000_000.0, "1e+06"),
            (10_000_000.0, "1e+07"),
            (123_456_789.0, "1.23456789e+08"),
            (1.5, "1.5"),
            (-2.25, "-2.25"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e100, "1e+100"),
            (-1_000_000.0, "-1e+06"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn values_as_go_prints_them() {
        assert_eq!(value(&json!(null)), "<nil>");
        assert_eq!(value(&json!(["a", 1, true])), "[a 1 true]");
        assert_eq!(value(&json!({"b": 2, "a": "x"})), "map[a:x b:2]");
        assert_eq!(value(&json!(18_000_000_000_000_000_001u64)), "18000000000000000001");
    }

    proptest! {
        #[test]
        fn floats_read_back_the_same(number in any::<f64>().prop_filter("a number", |n| n.is_finite())) {
            prop_assert_eq!(float(number).parse::<f64>(), Ok(number));
        }
    }
}
