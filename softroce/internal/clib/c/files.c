// SPDX-License-Identifier: Apache-2.0

/* libverbena-files.so is preloaded into programs that look for files of RDMA devices before they
 * call libibverbs, such as UCX. In place of the system's files in /dev and /sys, it shows them those
 * in the folder "files", which is in the folder of this library. All other paths go to the system's
 * files. So do the paths of programs that call the kernel without libc. */

#define _GNU_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SHOWN __attribute__((visibility("default")))

static char files[PATH_MAX];

__attribute__((constructor)) static void locate(void)
{
	char own[PATH_MAX];
	Dl_info info;
	char *slash;

	if (!dladdr(locate, &info) || !realpath(info.dli_fname, own))
		return;
	slash = strrchr(own, '/');
	if (slash && slash - own + sizeof("/files") <= sizeof(files))
		sprintf(files, "%.*s/files", (int)(slash - own), own);
}

/* Returns the path to open in place of path: path itself or, for a file of an RDMA device, a path
 * in the folder "files", which it writes to room. */
static const char *shown(const char *path, char room[PATH_MAX])
{
	static const char *const hidden[] = {"/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"};

	if (!path || !*files)
		return path;
	for (size_t i = 0; i < sizeof(hidden) / sizeof(*hidden); i++) {
		size_t n = strlen(hidden[i]);

		if (strncmp(path, hidden[i], n) == 0 && (path[n] == '/' || path[n] == 0) &&
		    snprintf(room, PATH_MAX, "%s%s", files, path) < PATH_MAX)
			return room;
	}
	return path;
}

/* Returns the function of that name in the libraries after this one, normally libc. Returns NULL and
 * sets errno if there is none. */
static void *next_of(void **known, const char *name)
{
	void *next = __atomic_load_n(known, __ATOMIC_RELAXED);

	if (!next) {
		next = dlsym(RTLD_NEXT, name);
		__atomic_store_n(known, next, __ATOMIC_RELAXED);
	}
	if (!next)
		errno = ENOSYS;
	return next;
}

/* Defines a function that replaces the path and calls the function of the same name in libc. If this
 * version of libc has no such function, it returns failed. */
#define PASS(type, failed, name, path, parameters, arguments)                                                          \
	SHOWN type name parameters                                                                                     \
	{                                                                                                              \
		static void *known;                                                                                    \
		type(*next) parameters;                                                                                \
		char room[PATH_MAX];                                                                                   \
                                                                                                                       \
		*(void **)&next = next_of(&known, #name);                                                              \
		path = shown(path, room);                                                                              \
		return next ? next arguments : failed;                                                                 \
	}

/* Defines such a function whose last argument, mode, exists only with O_CREAT and O_TMPFILE. */
#define PASS_OPEN(name, parameters, arguments)                                                                         \
	SHOWN int name parameters                                                                                      \
	{                                                                                                              \
		static void *known;                                                                                    \
		int(*next) parameters;                                                                                 \
		char room[PATH_MAX];                                                                                   \
		mode_t mode = 0;                                                                                       \
		va_list rest;                                                                                          \
                                                                                                                       \
		if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                                             \
			va_start(rest, flags);                                                                         \
			mode = va_arg(rest, mode_t);                                                                   \
			va_end(rest);                                                                                  \
		}                                                                                                      \
		*(void **)&next = next_of(&known, #name);                                                              \
		path = shown(path, room);                                                                              \
		return next ? next arguments : -1;                                                                     \
	}

struct stat64;
struct statx;

PASS_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
PASS_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
PASS_OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
PASS_OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))
/* With _FORTIFY_SOURCE, the compiler calls these instead of open without a mode. */
PASS(int, -1, __open_2, path, (const char *path, int flags), (path, flags))
PASS(int, -1, __open64_2, path, (const char *path, int flags), (path, flags))
PASS(int, -1, __openat_2, path, (int at, const char *path, int flags), (at, path, flags))
PASS(int, -1, __openat64_2, path, (int at, const char *path, int flags), (at, path, flags))

PASS(FILE *, NULL, fopen, path, (const char *path, const char *mode), (path, mode))
PASS(FILE *, NULL, fopen64, path, (const char *path, const char *mode), (path, mode))
PASS(FILE *, NULL, freopen, path, (const char *path, const char *mode, FILE *f), (path, mode, f))
PASS(FILE *, NULL, freopen64, path, (const char *path, const char *mode, FILE *f), (path, mode, f))

PASS(int, -1, stat, path, (const char *path, struct stat *s), (path, s))
PASS(int, -1, stat64, path, (const char *path, struct stat64 *s), (path, s))
PASS(int, -1, lstat, path, (const char *path, struct stat *s), (path, s))
PASS(int, -1, lstat64, path, (const char *path, struct stat64 *s), (path, s))
PASS(int, -1, fstatat, path, (int at, const char *path, struct stat *s, int flags), (at, path, s, flags))
PASS(int, -1, fstatat64, path, (int at, const char *path, struct stat64 *s, int flags), (at, path, s, flags))
PASS(int, -1, statx, path, (int at, const char *path, int flags, unsigned mask, struct statx *s), (at, path, flags, mask, s))
/* Programs that were linked with glibc before 2.33 call these instead of stat. */
PASS(int, -1, __xstat, path, (int version, const char *path, struct stat *s), (version, path, s))
PASS(int, -1, __xstat64, path, (int version, const char *path, struct stat64 *s), (version, path, s))
PASS(int, -1, __lxstat, path, (int version, const char *path, struct stat *s), (version, path, s))
PASS(int, -1, __lxstat64, path, (int version, const char *path, struct stat64 *s), (version, path, s))
PASS(int, -1, __fxstatat, path, (int version, int at, const char *path, struct stat *s, int flags), (version, at, path, s, flags))
PASS(int, -1, __fxstatat64, path, (int version, int at, const char *path, struct stat64 *s, int flags),
     (version, at, path, s, flags))

PASS(int, -1, access, path, (const char *path, int mode), (path, mode))
PASS(int, -1, euidaccess, path, (const char *path, int mode), (path, mode))
PASS(int, -1, eaccess, path, (const char *path, int mode), (path, mode))
PASS(int, -1, faccessat, path, (int at, const char *path, int mode, int flags), (at, path, mode, flags))

PASS(DIR *, NULL, opendir, path, (const char *path), (path))
PASS(int, -1, scandir, path,
     (const char *path, struct dirent ***list, int (*filter)(const struct dirent *),
      int (*compare)(const struct dirent **, const struct dirent **)),
     (path, list, filter, compare))
PASS(int, -1, scandir64, path,
     (const char *path, struct dirent64 ***list, int (*filter)(const struct dirent64 *),
      int (*compare)(const struct dirent64 **, const struct dirent64 **)),
     (path, list, filter, compare))
PASS(ssize_t, -1, readlink, path, (const char *path, char *to, size_t size), (path, to, size))
PASS(ssize_t, -1, readlinkat, path, (int at, const char *path, char *to, size_t size), (at, path, to, size))
PASS(char *, NULL, realpath, path, (const char *path, char *to), (path, to))
PASS(char *, NULL, __realpath_chk, path, (const char *path, char *to, size_t size), (path, to, size))
PASS(char *, NULL, canonicalize_file_name, path, (const char *path), (path))
PASS(int, -1, chdir, path, (const char *path), (path))
PASS(ssize_t, -1, getxattr, path, (const char *path, const char *name, void *value, size_t size), (path, name, value, size))
PASS(ssize_t, -1, lgetxattr, path, (const char *path, const char *name, void *value, size_t size), (path, name, value, size))
PASS(ssize_t, -1, listxattr, path, (const char *path, char *list, size_t size), (path, list, size))
PASS(ssize_t, -1, llistxattr, path, (const char *path, char *list, size_t size), (path, list, size))
