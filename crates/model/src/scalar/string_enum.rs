//! String enumerations. Unknown values are kept, so that an object written by a newer version can be read and
//! written back; validation rejects them.

/// A string that should be one of a fixed set of names.
pub trait StringEnum {
    /// The names that are accepted.
    const NAMES: &'static [&'static str];

    /// Returns the text as written.
    fn as_str(&self) -> &str;

    /// Returns whether the value is empty, which means that the field was omitted.
    fn is_unset(&self) -> bool {
        self.as_str().is_empty()
    }

    fn is_known(&self) -> bool;
}

/// `string_enum! { /// doc  pub enum Name { Variant, Other = "other" } }`: defines the known variants plus
/// `Unknown(String)`. The default is the empty string, which means that the field was omitted, as in Calico.
#[macro_export]
macro_rules! string_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident $(= $text:literal)?),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$vmeta])* $variant,)*
            /// A value this version does not know, or the empty string.
            Unknown(String),
        }

        impl $crate::scalar::StringEnum for $name {
            const NAMES: &'static [&'static str] = &[$($crate::string_enum!(@text $variant $($text)?),)*];

            fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $crate::string_enum!(@text $variant $($text)?),)*
                    $name::Unknown(text) => text,
                }
            }

            fn is_known(&self) -> bool {
                !matches!(self, $name::Unknown(_))
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                match text {
                    $($crate::string_enum!(@text $variant $($text)?) => $name::$variant,)*
                    other => $name::Unknown(other.to_owned()),
                }
            }
        }

        impl Default for $name {
            fn default() -> Self {
                $name::Unknown(String::new())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str($crate::scalar::StringEnum::as_str(self))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::scalar::StringEnum::as_str(self))
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(|text| $name::from(text.as_str()))
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({
                    "type": "string",
                    "enum": <$name as $crate::scalar::StringEnum>::NAMES,
                })
            }
        }
    };
    (@text $variant:ident) => { stringify!($variant) };
    (@text $variant:ident $text:literal) => { $text };
}

#[cfg(test)]
mod tests {
    use super::StringEnum;

    string_enum! {
        /// A colour.
        enum Colour { Red, Green = "green" }
    }

    #[test]
    fn unknown_values_survive_a_round_trip() {
        for text in ["Red", "green", "Mauve", ""] {
            let colour: Colour = serde_json::from_value(text.into()).unwrap();
            assert_eq!(colour.is_known(), text == "Red" || text == "green");
            assert_eq!(serde_json::to_value(&colour).unwrap(), text);
        }
        assert_eq!(Colour::NAMES, ["Red", "green"]);
        assert!(Colour::default().is_unset());
        assert_eq!(Colour::from("green"), Colour::Green);
        assert_eq!(Colour::Red.to_string(), "Red");
    }
}
