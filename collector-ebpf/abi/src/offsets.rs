//! Kernel fields that the programs read. Rust emits no CO-RE relocations, so the collector looks each one up
//! in the running kernel's BTF and writes the table into the programs' read-only data before they are loaded.

/// Offset of a field that this kernel does not have.
pub const ABSENT: u32 = u32::MAX;

macro_rules! offsets {
    ($($(#[$doc:meta])* $name:ident = $structure:literal $path:literal;)*) => {
        /// Byte offsets (and a few other facts of the running kernel), [`ABSENT`] where unknown.
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct Offsets { $($(#[$doc])* pub $name: u32,)* }

        impl Offsets {
            pub const COUNT: usize = size_of::<Self>() / size_of::<u32>();
            pub const ABSENT: Self = Self { $($name: ABSENT,)* };

            /// (field of this table, kernel structure, member path) in the table's order.
            pub const FIELDS: [(&'static str, &'static str, &'static str); Self::COUNT] =
                [$((stringify!($name), $structure, $path),)*];

            /// The table as the words that the loader copies.
            #[must_use]
            pub fn to_words(&self) -> [u32; Self::COUNT] { [$(self.$name,)*] }

            #[must_use]
            pub fn from_words(words: &[u32; Self::COUNT]) -> Self {
                let [$($name,)*] = *words;
                Self { $($name,)* }
            }
        }
    };
}

offsets! {
    task_pid = "task_struct" "pid";
    task_tgid = "task_struct" "tgid";
    task_group_leader = "task_struct" "group_leader";
    task_real_parent = "task_struct" "real_parent";
    task_start_boottime = "task_struct" "start_boottime";
    task_signal = "task_struct" "signal";
    task_cred = "task_struct" "cred";
    task_mm = "task_struct" "mm";
    task_exit_code = "task_struct" "exit_code";
    task_utime = "task_struct" "utime";
    task_stime = "task_struct" "stime";
    task_runtime = "task_struct" "se.sum_exec_runtime";
    task_thread_node = "task_struct" "thread_node";
    task_thread_pid = "task_struct" "thread_pid";
    task_cgroups = "task_struct" "cgroups";
    css_set_default = "css_set" "dfl_cgrp";
    css_set_subsys = "css_set" "subsys";
    css_cgroup = "cgroup_subsys_state" "cgroup";
    cgroup_kn = "cgroup" "kn";
    kernfs_id = "kernfs_node" "id";
    pid_level = "pid" "level";
    pid_numbers = "pid" "numbers";
    upid_nr = "upid" "nr";
    signal_live = "signal_struct" "live";
    signal_flags = "signal_struct" "flags";
    signal_group_exit_code = "signal_struct" "group_exit_code";
    signal_utime = "signal_struct" "utime";
    signal_stime = "signal_struct" "stime";
    signal_runtime = "signal_struct" "sum_sched_runtime";
    signal_maxrss = "signal_struct" "maxrss";
    signal_thread_head = "signal_struct" "thread_head";
    signal_pids = "signal_struct" "pids";
    cred_euid = "cred" "euid";
    cred_egid = "cred" "egid";
    cred_uid = "cred" "uid";
    cred_gid = "cred" "gid";
    mm_arg_start = "mm_struct" "arg_start";
    mm_arg_end = "mm_struct" "arg_end";
    bprm_file = "linux_binprm" "file";
    bprm_filename = "linux_binprm" "filename";
    bprm_interp = "linux_binprm" "interp";
    bprm_argc = "linux_binprm" "argc";
    file_inode = "file" "f_inode";
    file_dentry = "file" "f_path.dentry";
    file_vfsmount = "file" "f_path.mnt";
    dentry_parent = "dentry" "d_parent";
    dentry_name = "dentry" "d_name.name";
    inode_ino = "inode" "i_ino";
    inode_nlink = "inode" "i_nlink";
    inode_sb = "inode" "i_sb";
    sb_dev = "super_block" "s_dev";
    sb_magic = "super_block" "s_magic";
    mount_mnt = "mount" "mnt";
    mount_mountpoint = "mount" "mnt_mountpoint";
    mount_parent = "mount" "mnt_parent";
    mount_ns = "mount" "mnt_ns";
    sock_family = "sock" "__sk_common.skc_family";
    sock_net = "sock" "__sk_common.skc_net.net";
    sock_num = "sock" "__sk_common.skc_num";
    sock_dport = "sock" "__sk_common.skc_dport";
    sock_daddr = "sock" "__sk_common.skc_daddr";
    sock_saddr = "sock" "__sk_common.skc_rcv_saddr";
    sock_daddr6 = "sock" "__sk_common.skc_v6_daddr";
    sock_saddr6 = "sock" "__sk_common.skc_v6_rcv_saddr";
    sock_flags = "sock" "__sk_common.skc_flags";
    sock_err = "sock" "sk_err";
    sock_protocol = "sock" "sk_protocol";
    sock_cgroup_data = "sock" "sk_cgrp_data";
    sock_cgroup = "sock_cgroup_data" "cgroup";
    inet_sport = "inet_sock" "inet_sport";
    net_inum = "net" "ns.inum";
    tcp_bytes_sent = "tcp_sock" "bytes_sent";
    tcp_bytes_retrans = "tcp_sock" "bytes_retrans";
    tcp_bytes_received = "tcp_sock" "bytes_received";
    tcp_segs_out = "tcp_sock" "segs_out";
    tcp_segs_in = "tcp_sock" "segs_in";
    /// Byte that holds the bit field `secureexec`.
    bprm_secureexec = "linux_binprm" "secureexec:byte";
    /// Bit of it within that byte.
    bprm_secureexec_bit = "linux_binprm" "secureexec:bit";
    size_upid = "upid" "";
    /// Not offsets: enumerators and arguments.
    pidtype_sid = "enum pid_type" "PIDTYPE_SID";
    sock_done_bit = "enum sock_flags" "SOCK_DONE";
    /// Index in `css_set.subsys` of the hierarchy that names sandboxes; absent means cgroup v2.
    cgroup_subsys = "enum cgroup_subsys_id" "";
    /// Arguments of the tracepoint `sched_process_exit`: two when it says whether the group is dead.
    exit_arguments = "tracepoint" "sched_process_exit";
}
