//! What the library has noted of Landlock (landlock(7)).

/// The rule sets that the process has made through the C library, and the domain that it has made of some: the kernel
/// tells neither. Memory of the library (.bss), inherited by fork, part of every image.
#[repr(C)]
pub struct LandlockNotes {
    /// 1: something is not noted, or not for sure: the domain is not known.
    pub is_unknown: u64,
    /// Layers that the process was in already when it made its first.
    pub before: u64,
    /// Its own layers so far.
    pub layers: u64,
    /// Each of them, the oldest first.
    pub domain: [LandlockLayer; LandlockNotes::LAYERS],
    /// Rule sets so far.
    pub sets: u64,
    /// What each handles.
    pub rulesets: [LandlockRuleset; LandlockNotes::SETS],
    /// Rules so far.
    pub used: u64,
    /// Their rules.
    pub rules: [LandlockRule; LandlockNotes::RULES],
    /// Bytes of `text` that were taken.
    pub taken: u64,
    /// Paths of rules.
    pub text: [u8; LandlockNotes::TEXT],
}

/// A layer.
#[repr(C)]
pub struct LandlockLayer {
    /// Its rule set.
    pub set: u32,
    /// LANDLOCK_RESTRICT_SELF_*.
    pub flags: u32,
    /// Rules that there were then, of all rule sets: what a rule set gets later does not count.
    pub rules: u64,
}

/// A rule set: `struct landlock_ruleset_attr`.
#[repr(C)]
pub struct LandlockRuleset {
    /// The descriptor that it was made at.
    pub fd: u64,
    /// LANDLOCK_ACCESS_FS_*.
    pub files: u64,
    /// LANDLOCK_ACCESS_NET_*.
    pub network: u64,
    /// LANDLOCK_SCOPE_*.
    pub scoped: u64,
}

/// A rule.
#[repr(C)]
pub struct LandlockRule {
    /// The rule set that it is of.
    pub set: u32,
    /// LANDLOCK_RULE_*.
    pub kind: u32,
    /// What it allows.
    pub access: u64,
    /// A port, or where its path begins in [`LandlockNotes::text`].
    pub value: u64,
    /// Bytes of the path.
    pub len: u64,
    /// The device and the inode that the path led to.
    pub device: u64,
    /// See there.
    pub inode: u64,
}

offsets! { LandlockNotes {
    IS_UNKNOWN = is_unknown;
    BEFORE = before;
    LAYER_COUNT = layers;
    DOMAIN = domain;
    SET_COUNT = sets;
    RULESETS = rulesets;
    RULE_COUNT = used;
    RULE_TABLE = rules;
    TAKEN = taken;
    PATHS = text;
} }

impl LandlockNotes {
    /// Most layers: the kernel's limit (security/landlock/limits.h).
    pub const LAYERS: usize = 16;
    /// Most rule sets.
    pub const SETS: usize = 64;
    /// Most rules.
    pub const RULES: usize = 1024;
    /// Room for paths.
    pub const TEXT: usize = 64 * 1024;
    /// Length, bytes.
    pub const LEN: usize = core::mem::size_of::<LandlockNotes>();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images hold it.
    #[test]
    fn the_layout_is_frozen() {
        let now = [
            LandlockNotes::IS_UNKNOWN,
            LandlockNotes::BEFORE,
            LandlockNotes::LAYER_COUNT,
            LandlockNotes::DOMAIN,
            LandlockNotes::SET_COUNT,
            LandlockNotes::RULESETS,
            LandlockNotes::RULE_COUNT,
            LandlockNotes::RULE_TABLE,
            LandlockNotes::TAKEN,
            LandlockNotes::PATHS,
            LandlockNotes::LEN,
        ];
        assert_eq!(now, [0, 8, 16, 24, 280, 288, 2336, 2344, 51_496, 51_504, 117_040]);
    }
}
