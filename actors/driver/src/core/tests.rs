//! To be written below.
