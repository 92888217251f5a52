// SPDX-License-Identifier: Apache-2.0

package layout

// opaque are types of libc that are structs or unions without a tag, or whose
// tag differs from one libc to another, each with the header that declares it.
// Only libc looks into them, and the bindings know pointers to them.
var opaque = map[string]string{
	"DIR": "dirent.h", "FILE": "stdio.h", "cnd_t": "threads.h", "cpu_set_t": "sched.h", "fd_set": "", "fenv_t": "fenv.h",
	"fexcept_t": "fenv.h", "fpos_t": "stdio.h", "glob_t": "glob.h", "iconv_t": "iconv.h", "mbstate_t": "wchar.h", "mcontext_t": "ucontext.h",
	"mtx_t": "threads.h", "posix_spawn_file_actions_t": "spawn.h", "posix_spawnattr_t": "spawn.h", "pthread_attr_t": "pthread.h",
	"pthread_barrier_t": "pthread.h", "pthread_barrierattr_t": "pthread.h", "pthread_condattr_t": "pthread.h",
	"pthread_mutexattr_t": "pthread.h", "pthread_rwlock_t": "pthread.h", "pthread_rwlockattr_t": "pthread.h", "regex_t": "regex.h",
	"regmatch_t": "regex.h", "sem_t": "semaphore.h", "siginfo_t": "signal.h", "sigset_t": "signal.h", "stack_t": "signal.h",
	"ucontext_t": "ucontext.h", "wordexp_t": "wordexp.h",
}

// Opaque returns the header that declares a type of libc which only libc looks
// into. It is empty for one that every package includes.
func Opaque(name string) (header string, ok bool) {
	header, ok = opaque[name]
	return header, ok
}
