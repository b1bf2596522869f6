//! The life of a session between two nodes, without I/O.
