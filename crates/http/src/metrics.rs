//! Metrics in the Prometheus text format: registries and pages that declare the name, type and help text of each metric
//! once.

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::fmt::{Display, Write};

/// Text of a metrics page.
#[derive(Debug, Default)]
pub struct MetricsPage(pub String);

impl MetricsPage {
    /// Adds the header of a metric; its samples follow.
    pub fn begin_metric(&mut self, name: &str, kind: &str, help: &str) {
        _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    pub fn add_sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape_label(value))).collect();
        _ = writeln!(self.0, "{name}{{{}}} {value}", labels.join(","));
    }

    /// Adds a metric with one sample without labels.
    pub fn add_metric(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.begin_metric(name, kind, help);
        _ = writeln!(self.0, "{name} {value}");
    }
}

fn escape_label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Adds metrics without labels to a `MetricsPage`, one per line: `gauge "name", "Help text." => value;`.
#[macro_export]
macro_rules! add_metrics {
    ($page:ident; $($kind:ident $name:literal, $help:literal => $value:expr;)*) => {
        $($page.add_metric($name, stringify!($kind), $help, $value);)*
    };
}

/// Renders a registry as a part of a page, that is, without the end marker.
pub fn render_registry(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, registry);
    text.truncate(text.trim_end_matches("# EOF\n").len());
    text
}

/// Renders a registry like `render_registry`. Counters whose names start with `prefix` have no suffix `_total`, as in
/// Calico.
pub fn render_calico_registry(registry: &Registry, prefix: &str) -> String {
    let text = render_registry(registry);
    text.lines().map(|line| strip_total_suffix(line, prefix) + "\n").collect()
}

fn strip_total_suffix(line: &str, prefix: &str) -> String {
    let end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    match name.strip_suffix("_total") {
        Some(known) if name.starts_with(prefix) => format!("{known}{rest}"),
        _ => line.to_owned(),
    }
}

/// Declares a struct of metrics, one per line: `field: Type = "name", "Help text";`. Its method `register` registers
/// every field that has a name and a help text. The names of counters are written without their suffix `_total`.
#[macro_export]
macro_rules! declare_metrics {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $struct:ident {
            $(
                $(#[$field_attribute:meta])*
                $field_visibility:vis $field:ident: $type:ty $(= $name:literal, $help:literal)?;
            )*
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $struct {
            $($(#[$field_attribute])* $field_visibility $field: $type,)*
        }

        impl $struct {
            fn register(&self, registry: &mut $crate::prometheus_client::registry::Registry) {
                $($(registry.register($name, $help, self.$field.clone());)?)*
            }
        }
    };
}
