//! Metrics in the Prometheus text format: registries and pages that declare the name, type and help text of each metric
//! once.

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

/// Declares a struct of metrics, one per line: `field: Type => "name", "Help text";`. `new` creates and registers them;
/// a metric without a default is created from `= expression` after its type. `encode` renders all of them. The names of
/// counters are written without their suffix `_total`.
#[macro_export]
macro_rules! declare_metrics {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$doc:meta])* $field_vis:vis $field:ident: $kind:ty $(= $value:expr)? => $metric:literal, $help:literal;)*
    }) => {
        $(#[$meta])*
        $vis struct $name {
            registry: $crate::prometheus_client::registry::Registry,
            $($(#[$doc])* $field_vis $field: $kind,)*
        }

        impl $name {
            pub fn new() -> $name {
                let mut registry = $crate::prometheus_client::registry::Registry::default();
                $(
                    let $field: $kind = $crate::declare_metrics!(@create $($value)?);
                    registry.register($metric, $help, $field.clone());
                )*
                $name { registry, $($field,)* }
            }

            pub fn encode(&self) -> String {
                let mut text = String::new();
                // Writing to a string cannot fail.
                let _ = $crate::prometheus_client::encoding::text::encode(&mut text, &self.registry);
                text
            }
        }
    };
    (@create) => { Default::default() };
    (@create $value:expr) => { $value };
}
