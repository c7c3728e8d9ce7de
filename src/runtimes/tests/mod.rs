//! What real daemons answered, and that no value can be an option of a command.

mod arrangements;
