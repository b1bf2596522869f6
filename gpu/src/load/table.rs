//! A library's functions as a table of pointers: those it must have, and those that only some versions have. `cuda`
//! and `nccl` define their tables by it. cudarc's own loading panics if a library or a symbol is missing, so only its
//! types are used.

/// Declares a table. Each line is `field = "symbol": fn(arguments) -> result;`.
macro_rules! table {
    (
        $(#[$meta:meta])*
        $name:ident {
            required { $($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?) -> $result:ty;)* }
            optional { $($optional:ident = $optional_symbol:literal: fn($($optional_argument:ty),* $(,)?) -> $optional_result:ty;)* }
        }
    ) => {
        $(#[$meta])*
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            $(pub(crate) $optional: Option<unsafe extern "C" fn($($optional_argument),*) -> $optional_result>,)*
        }

        impl $name {
            /// Looks every symbol up.
            pub(crate) fn read(library: &$crate::load::LoadedLibrary) -> Result<$name, $crate::load::LoadError> {
                Ok($name {
                    $($field: {
                        let address = library.symbol($symbol).ok_or_else(|| library.lacks($symbol))?;
                        // SAFETY: the library's header declares the function with this type.
                        unsafe {
                            std::mem::transmute::<
                                *const std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(address)
                        }
                    },)*
                    $($optional: library.symbol($optional_symbol).map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *const std::ffi::c_void,
                                unsafe extern "C" fn($($optional_argument),*) -> $optional_result,
                            >(address)
                        }
                    }),)*
                })
            }
        }
    };
}

pub(crate) use table;
