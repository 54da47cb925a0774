//! Declares a struct of Prometheus metrics: the field, type, name and help text of each metric in one place.

/// Defines the struct with a method `register`, which registers every field that has a name and a help text.
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
            fn register(&self, registry: &mut prometheus_client::registry::Registry) {
                $($(registry.register($name, $help, self.$field.clone());)?)*
            }
        }
    };
}

pub(crate) use declare_metrics;
