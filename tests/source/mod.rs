//! Rust source as tokens: production code without comments and tests, and the paths in it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A production module.
#[derive(Default)]
pub struct Module {
    /// The path in the crate: `["change", "probe", "container"]`.
    pub path: Vec<String>,
    pub file: PathBuf,
    /// The tokens, without brackets.
    pub tokens: Vec<Token>,
    /// The paths that start with `crate` or `super`, resolved, with their lines.
    pub uses: Vec<(Vec<String>, usize)>,
    /// The declared modules.
    pub children: Vec<Module>,
}

pub struct Token {
    pub text: String,
    pub line: usize,
    pub is_literal: bool,
}

/// The crate in the directory `src`, with all its modules.
pub fn read(src: &Path) -> Module {
    module(Vec::new(), src.join("lib.rs"), src)
}

/// `inside` is the directory of its child modules.
fn module(path: Vec<String>, file: PathBuf, inside: &Path) -> Module {
    let text = fs::read_to_string(&file).expect("a source file");
    let mut module = Module {
        file,
        ..parsed(path, &text)
    };
    for three in module.tokens.windows(3) {
        let [before, name, after] = three else {
            continue;
        };
        if before.text == "mod" && after.text == ";" {
            let path = [&module.path[..], std::slice::from_ref(&name.text)].concat();
            let directory = inside.join(&name.text);
            let file = Some(directory.join("mod.rs")).filter(|file| file.is_file());
            let file = file.unwrap_or_else(|| inside.join(format!("{}.rs", name.text)));
            module.children.push(self::module(path, file, &directory));
        }
    }
    module
}

/// The production code of a module, without its children.
pub fn parsed(path: Vec<String>, text: &str) -> Module {
    let mut module = Module {
        path,
        ..Module::default()
    };
    module.add(text.parse().expect("Rust source"));
    module
}

impl Module {
    /// This module and all its descendants.
    pub fn all(&self) -> Vec<&Module> {
        let below = self.children.iter().flat_map(Module::all);
        [self].into_iter().chain(below).collect()
    }

    pub fn name(&self) -> &str {
        self.path.last().map_or("crate", String::as_str)
    }

    /// A human-readable `file:line`.
    pub fn place(&self, line: usize) -> String {
        format!("{}:{line}", self.file.display())
    }

    fn add(&mut self, code: TokenStream) {
        let trees: Vec<TokenTree> = code.into_iter().collect();
        let mut rest = &trees[..];
        let mut colons = 0;
        while let [tree, after @ ..] = rest {
            if let TokenTree::Group(group) = tree {
                // Documentation comments are attributes.
                let attribute = match group.delimiter() {
                    Delimiter::Bracket => group.stream().to_string().replace(' ', ""),
                    _ => String::new(),
                };
                rest = after;
                if attribute == "cfg(test)" {
                    let end = after
                        .iter()
                        .position(ends_item)
                        .map_or(after.len(), |at| at + 1);
                    rest = &after[end..];
                } else if !attribute.starts_with("doc=") {
                    self.add(group.stream());
                }
                continue;
            }
            let (text, line) = (tree.to_string(), tree.span().start().line);
            // After two colons, it is the middle of a path.
            if colons < 2 && (text == "crate" || text == "super") {
                let mut paths = Vec::new();
                expand(rest, self.path.clone(), &mut paths);
                self.uses.extend(paths.into_iter().map(|path| (path, line)));
            }
            colons = if text == ":" { colons + 1 } else { 0 };
            let is_literal = matches!(tree, TokenTree::Literal(_));
            self.tokens.push(Token {
                text,
                line,
                is_literal,
            });
            rest = after;
        }
    }
}

/// An item ends with a semicolon or a block.
fn ends_item(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        other => other.to_string() == ";",
    }
}

/// Collects the paths of a `use` tree such as `a::{b, c::d}`, in the module `path`.
fn expand(tree: &[TokenTree], mut path: Vec<String>, found: &mut Vec<Vec<String>>) {
    for segment in tree.chunks(3) {
        match &segment[0] {
            TokenTree::Group(group) => {
                let inside: Vec<TokenTree> = group.stream().into_iter().collect();
                for element in inside.split(|token| token.to_string() == ",") {
                    expand(element, path.clone(), found);
                }
                return;
            }
            TokenTree::Ident(name) if name == "crate" => path.clear(),
            TokenTree::Ident(name) if name == "super" => _ = path.pop(),
            TokenTree::Ident(name) => path.push(name.to_string()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        let separator: String = segment[1..].iter().map(TokenTree::to_string).collect();
        if separator != "::" {
            break;
        }
    }
    found.push(path);
}
