// SPDX-License-Identifier: Apache-2.0

package layout

// opaque maps types of libc to the header that declares them. They are structs
// or unions without a tag, or with a tag that differs from one libc to another.
// Only libc uses their members, and the bindings only have pointers to them.
var opaque = map[string]string{
	"DIR": "dirent.h", "FILE": "stdio.h", "cnd_t": "threads.h", "cpu_set_t": "sched.h", "fd_set": "", "fenv_t": "fenv.h",
	"fexcept_t": "fenv.h", "fpos_t": "stdio.h", "glob_t": "glob.h", "iconv_t": "iconv.h", "mbstate_t": "wchar.h", "mcontext_t": "ucontext.h",
	"mtx_t": "threads.h", "posix_spawn_file_actions_t": "spawn.h", "posix_spawnattr_t": "spawn.h", "pthread_attr_t": "pthread.h",
	"pthread_barrier_t": "pthread.h", "pthread_barrierattr_t": "pthread.h", "pthread_condattr_t": "pthread.h",
	"pthread_mutexattr_t": "pthread.h", "pthread_rwlock_t": "pthread.h", "pthread_rwlockattr_t": "pthread.h", "regex_t": "regex.h",
	"regmatch_t": "regex.h", "sem_t": "semaphore.h", "siginfo_t": "signal.h", "sigset_t": "signal.h", "stack_t": "signal.h",
	"ucontext_t": "ucontext.h", "wordexp_t": "wordexp.h",
}

// Opaque reports whether name is a type of libc whose members only libc uses,
// and returns the header that declares it. The header is empty if every package
// includes it.
func Opaque(name string) (header string, ok bool) {
	header, ok = opaque[name]
	return header, ok
}
