//! Finds the kernel of the next boot in the boot loader files.
//!
//! Reads the same files as GRUB: its environment block (`next_entry`, `saved_entry`), then the
//! default in `grub.cfg`, then the menu (Debian, Ubuntu) or the Boot Loader Specification entries
//! (Red Hat and derivatives). With another boot loader, the next kernel is unknown, unless only one
//! kernel is installed.

use crate::{facts::reader::FactReader, model::version::KernelVersion};

const FACT: &str = "kernel.next-boot";
const ENTRIES: &str = "/boot/loader/entries";

/// Returns the kernel of the next boot, or the reason it is unknown.
pub(super) fn next(
    reader: &mut FactReader<'_>,
    installed: &[KernelVersion],
) -> Result<KernelVersion, String> {
    for directory in ["/boot/grub2", "/boot/grub"] {
        let Some(config) = reader.text(FACT, &format!("{directory}/grub.cfg")) else {
            continue;
        };
        let environment = reader
            .text(FACT, &format!("{directory}/grubenv"))
            .unwrap_or_default();
        let wanted = wanted_entry(&config, &environment);
        let entries = entries(reader);
        let image = if entries.is_empty() {
            kernel_in_menu(&config, &wanted)?
        } else {
            kernel_in_entries(&entries, &wanted)?
        };
        return image
            .parse()
            .map_err(|error| format!("boot loader entry `{wanted}`: {error}"));
    }
    match installed {
        [] => Err("no installed kernel was found".to_owned()),
        // With one kernel the boot loader has no choice.
        [only] => Ok(only.clone()),
        several => Err(format!(
            "{} kernels are installed and no GRUB configuration could be read",
            several.len()
        )),
    }
}

/// Returns the kernel release in an image name such as `vmlinuz-6.1.0-44-amd64`.
pub(super) fn kernel_of_image(name: &str) -> Option<&str> {
    ["vmlinuz-", "vmlinux-", "kernel-"]
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .filter(|release| !release.is_empty())
}

/// A Boot Loader Specification entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BootEntry {
    id: String,
    title: String,
    release: String,
}

/// A node of the GRUB menu.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MenuNode {
    title: String,
    id: Option<String>,
    image: Option<String>,
    children: Vec<MenuNode>,
    submenu: bool,
}

fn entries(reader: &mut FactReader<'_>) -> Vec<BootEntry> {
    let mut entries: Vec<BootEntry> = reader
        .list(FACT, ENTRIES)
        .iter()
        .filter_map(|name| Some((name, name.strip_suffix(".conf")?)))
        .filter_map(|(name, id)| parse_entry(id, &reader.text(FACT, &format!("{ENTRIES}/{name}"))?))
        .collect();
    // GRUB lists the entries newest first. The release of the rescue kernel starts with `0-rescue`, so
    // its entry comes last, as in the GRUB menu.
    entries.sort_by(|a, b| {
        let key = |entry: &BootEntry| entry.release.parse::<KernelVersion>().ok();
        key(b).cmp(&key(a)).then_with(|| b.id.cmp(&a.id))
    });
    entries
}

fn parse_entry(id: &str, text: &str) -> Option<BootEntry> {
    let value = |key: &str| {
        text.lines()
            .filter_map(|line| line.trim().split_once([' ', '\t']))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.trim())
    };
    let image = value("linux")?;
    let name = image.rsplit('/').next().unwrap_or(image);
    Some(BootEntry {
        id: id.to_owned(),
        title: value("title").unwrap_or_default().to_owned(),
        release: kernel_of_image(name)
            .or_else(|| value("version"))?
            .to_owned(),
    })
}

/// Returns the entry that GRUB selects: an index, ID or title, with `>` between menu levels.
fn wanted_entry(config: &str, environment: &str) -> String {
    let variable = |name: &str| {
        environment
            .lines()
            .filter_map(|line| line.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value.trim().to_owned())
            .filter(|value| !value.is_empty())
    };
    if let Some(once) = variable("next_entry") {
        return once;
    }
    let default = config
        .lines()
        .filter_map(|line| line.trim().strip_prefix("set default="))
        .map(|value| value.trim().trim_matches(['"', '\'']))
        // Skip the line for a one-time selection, which was read above.
        .rfind(|value| !value.contains("next_entry"));
    match default {
        Some("${saved_entry}" | "$saved_entry") => variable("saved_entry"),
        Some(value) if !value.is_empty() => Some(value.to_owned()),
        _ => None,
    }
    .unwrap_or_else(|| "0".to_owned())
}

fn kernel_in_entries(entries: &[BootEntry], wanted: &str) -> Result<String, String> {
    let found = match wanted.parse::<usize>() {
        Ok(index) => entries.get(index),
        Err(_) => entries
            .iter()
            .find(|entry| entry.id == wanted || entry.title == wanted),
    };
    found
        .map(|entry| entry.release.clone())
        .ok_or_else(|| format!("the GRUB entry `{wanted}` is not in `{ENTRIES}`"))
}

fn kernel_in_menu(config: &str, wanted: &str) -> Result<String, String> {
    let menu = parse_menu(config);
    let mut level = &menu;
    let mut found = None;
    for word in split_path(wanted) {
        let node = match word.parse::<usize>() {
            Ok(index) => level.get(index),
            Err(_) => level
                .iter()
                .find(|node| node.id.as_deref() == Some(&word) || node.title == word),
        };
        let node = node.ok_or_else(|| format!("the GRUB menu has no entry `{wanted}`"))?;
        level = &node.children;
        found = Some(node);
    }
    match found {
        Some(node) if node.submenu => Err(format!("the GRUB entry `{wanted}` is a submenu")),
        Some(MenuNode {
            image: Some(image), ..
        }) => kernel_of_image(image).map(str::to_owned).ok_or_else(|| {
            format!("the GRUB entry `{wanted}` boots `{image}`, which is not a Linux kernel image")
        }),
        _ => Err(format!("the GRUB entry `{wanted}` has no kernel")),
    }
}

/// Splits a path such as `1>2` into levels. A literal `>` in a title is doubled.
fn split_path(path: &str) -> Vec<String> {
    const DOUBLE: char = '\u{0}';
    path.replace(">>", &DOUBLE.to_string())
        .split('>')
        .map(|word| word.replace(DOUBLE, ">"))
        .collect()
}

/// The maximum nesting depth of braces. The script of `grub-mkconfig` has four levels.
const DEEPEST: usize = 32;

/// Parses the menu in `grub.cfg`, which is a script. Only braces and the lines that define menu
/// entries or load kernels are used. Parsing stops at more than [`DEEPEST`] levels, so that an
/// untrusted file, for example in an image, cannot cause excessive time or stack use.
fn parse_menu(config: &str) -> Vec<MenuNode> {
    // One frame per open brace: the menu entry that it opens, or `None` for another block such as a function.
    let mut frames: Vec<Option<MenuNode>> = Vec::new();
    let mut menu = Vec::new();
    for line in config.lines().map(str::trim) {
        let opens = line.ends_with('{');
        if opens && frames.len() == DEEPEST {
            break;
        }
        let submenu = line.starts_with("submenu ");
        if opens && (submenu || line.starts_with("menuentry ")) {
            frames.push(Some(node(line, submenu)));
        } else if opens {
            frames.push(None);
        } else if line == "}" {
            if let Some(Some(node)) = frames.pop() {
                let parent = frames.iter_mut().rev().find_map(Option::as_mut);
                parent
                    .map_or(&mut menu, |parent| &mut parent.children)
                    .push(node);
            }
        } else if let Some(image) = image_of(line)
            && let Some(node) = frames.iter_mut().rev().find_map(Option::as_mut)
        {
            node.image.get_or_insert_with(|| image.to_owned());
        }
    }
    menu
}

fn node(line: &str, submenu: bool) -> MenuNode {
    let words = quoted_words(line);
    // `$menuentry_id_option ID`, or `--id ID`.
    let id = words
        .iter()
        .position(|word| word == "$menuentry_id_option" || word == "--id")
        .and_then(|at| words.get(at + 1))
        .cloned();
    MenuNode {
        title: words.get(1).cloned().unwrap_or_default(),
        id,
        image: None,
        children: Vec::new(),
        submenu,
    }
}

/// Returns the file name of the kernel that a line loads.
fn image_of(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let command = words.next()?;
    if !matches!(command, "linux" | "linux16" | "linuxefi") {
        return None;
    }
    words.next()?.rsplit('/').next()
}

/// Splits a shell line into words and removes quotes.
fn quoted_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut begun = false;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                begun = true;
            }
            (None, letter) if letter.is_whitespace() => {
                if begun || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                    begun = false;
                }
            }
            (_, letter) => word.push(letter),
        }
    }
    if begun || !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake;

    const CONFIG: &str = r#"
if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="0"
fi
function gfxmode {
	set gfxpayload="${1}"
}
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {
	load_video
	if [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
	linux	/boot/vmlinuz-6.1.0-44-amd64 root=UUID=1 ro quiet
	initrd	/boot/initrd.img-6.1.0-44-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-44-amd64' --class os $menuentry_id_option 'gnulinux-6.1.0-44-amd64-advanced-1' {
		linux	/boot/vmlinuz-6.1.0-44-amd64 root=UUID=1 ro quiet
	}
	menuentry 'Debian GNU/Linux, with Linux 6.1.0-40-amd64' --class os $menuentry_id_option 'gnulinux-6.1.0-40-amd64-advanced-1' {
		linux	/boot/vmlinuz-6.1.0-40-amd64 root=UUID=1 ro quiet
	}
}
menuentry 'Memory test' {
	linux16	/boot/memtest86+.bin
}
"#;

    #[test]
    fn nested_braces_are_parsed_with_limited_time_and_stack() {
        let times = 200_000;
        let open = "menuentry a {\n".repeat(times);
        let menu = parse_menu(&(open.clone() + &"}\n".repeat(times)));
        assert!(menu.len() <= 1);
        assert!(parse_menu(&(open + &"linux /vmlinuz-6.1.0\n".repeat(times))).is_empty());
    }

    #[test]
    fn kernels_are_found_in_the_grub_menu() {
        let menu = parse_menu(CONFIG);
        assert_eq!(menu.len(), 3);
        assert_eq!(menu[1].children.len(), 2);
        let kernel = |wanted: &str| kernel_in_menu(CONFIG, wanted);
        assert_eq!(kernel("0").as_deref(), Ok("6.1.0-44-amd64"));
        for old in [
            "1>1",
            "Advanced options for Debian GNU/Linux>Debian GNU/Linux, with Linux 6.1.0-40-amd64",
            "gnulinux-advanced-1>gnulinux-6.1.0-40-amd64-advanced-1",
        ] {
            assert_eq!(kernel(old).as_deref(), Ok("6.1.0-40-amd64"), "{old}");
        }
        for none in ["1", "2", "9", "", "1>7", "Windows"] {
            assert!(kernel(none).is_err(), "{none}");
        }
    }

    #[test]
    fn default_entry_of_grub_is_found() {
        assert_eq!(wanted_entry(CONFIG, ""), "0");
        assert_eq!(
            wanted_entry(CONFIG, "# GRUB Environment Block\nnext_entry=1>1\n"),
            "1>1"
        );
        let saved = "set default=\"${next_entry}\"\nset default=\"${saved_entry}\"\n";
        assert_eq!(wanted_entry(saved, "saved_entry=abc-5.14\n###"), "abc-5.14");
        assert_eq!(wanted_entry(saved, "saved_entry=\nnext_entry=\n"), "0");
        assert_eq!(split_path("a>>b>c"), ["a>b", "c"]);
    }

    #[test]
    fn kernels_are_found_in_red_hat_entries() {
        let (host, fakes) = fake::host();
        let id = "0123-5.14.0-570.12.1.el9_6.x86_64";
        for release in [
            "5.14.0-570.12.1.el9_6.x86_64",
            "5.14.0-503.40.1.el9_5.x86_64",
        ] {
            fakes.files.put(
                &format!("{ENTRIES}/0123-{release}.conf"),
                format!(
                    "title AlmaLinux ({release})\nversion {release}\nlinux /vmlinuz-{release}\n"
                ),
            );
        }
        fakes.files.put(
            &format!("{ENTRIES}/0123-0-rescue.conf"),
            "title Rescue\nversion 0-rescue-0123\nlinux /vmlinuz-0-rescue-0123\n",
        );
        fakes.files.put(
            "/boot/grub2/grub.cfg",
            "set default=\"${saved_entry}\"\nblscfg\n",
        );
        let next = || {
            let mut reader = FactReader::new(host.reader().files());
            next(&mut reader, &[]).map(|kernel| kernel.to_string())
        };
        assert_eq!(next().as_deref(), Ok("5.14.0-570.12.1.el9_6.x86_64"));
        fakes
            .files
            .put("/boot/grub2/grubenv", format!("saved_entry={id}\n"));
        assert_eq!(next().as_deref(), Ok("5.14.0-570.12.1.el9_6.x86_64"));
        fakes.files.put("/boot/grub2/grubenv", "saved_entry=1\n");
        assert_eq!(next().as_deref(), Ok("5.14.0-503.40.1.el9_5.x86_64"));
        fakes.files.put("/boot/grub2/grubenv", "saved_entry=gone\n");
        assert!(next().is_err());
    }

    #[test]
    fn only_a_single_kernel_is_known_without_a_boot_loader() {
        let (host, _) = fake::host();
        let mut reader = FactReader::new(host.reader().files());
        let one: KernelVersion = "6.1.0-44-amd64".parse().unwrap();
        let two: KernelVersion = "6.1.0-45-amd64".parse().unwrap();
        assert!(next(&mut reader, &[]).is_err());
        assert_eq!(
            next(&mut reader, std::slice::from_ref(&one)),
            Ok(one.clone())
        );
        assert!(next(&mut reader, &[one, two]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(
            text in "(\\}|\\{|\n|menuentry |submenu |linux |'|\"|set default=|>|.)*",
            cut in 0..CONFIG.len(),
        ) {
            let _ = kernel_in_menu(&text, &wanted_entry(&text, &text));
            let _ = kernel_in_menu(&CONFIG[..cut], &text);
            let _ = parse_entry("id", &text);
        }
    }
}
