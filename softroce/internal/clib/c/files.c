// SPDX-License-Identifier: Apache-2.0

/* libverbena-files.so is preloaded into programs that look for files of RDMA devices before they
 * call libibverbs, such as UCX. In place of the system's files in /dev and /sys, it shows them those
 * in the folder "files", which is in the folder of this library, or in the folder that VERBENA_FILES
 * names. All other paths go to the system's files. So do the paths of programs that call the kernel
 * without libc. A path may be written in any way, such as "infiniband" after a descriptor of
 * /sys/class. */

#define _GNU_SOURCE

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN __attribute__((visibility("default")))

static char files[PATH_MAX];

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

static void locate(void)
{
	static void *known;
	char own[PATH_MAX], *(*next)(const char *, char *);
	const char *other = getenv("VERBENA_FILES");
	Dl_info info;
	char *slash;

	*(void **)&next = next_of(&known, "realpath"); /* this library's would call locate */
	if (other && *other == '/' && strlen(other) < sizeof(files)) {
		/* The paths that libc makes have no symbolic links. */
		if (!next || !next(other, files))
			strcpy(files, other);
		return;
	}
	if (!next || !dladdr(files, &info) || !next(info.dli_fname, own))
		return;
	slash = strrchr(own, '/');
	if (slash && slash - own + sizeof("/files") <= sizeof(files))
		sprintf(files, "%.*s/files", (int)(slash - own), own);
}

static pthread_once_t located = PTHREAD_ONCE_INIT;

/* Finds the folder before the program can change its working directory, since the path of this
 * library may be relative. Constructors of other libraries, which run before this one, find it by
 * calling a function of this library. */
__attribute__((constructor)) static void locate_now(void)
{
	pthread_once(&located, locate);
}

/* Reports whether a path may be one of a file of an RDMA device. Only such paths take room on the
 * stack, which is small in signal handlers. */
static int may_be_hidden(const char *path)
{
	return path && strstr(path, "infiniband");
}

/* Reports whether the absolute path is that of a file of an RDMA device, or of a folder of such files. */
static int is_hidden(const char *path)
{
	static const char *const hidden[] = {"/dev/infiniband", "/sys/class/infiniband", "/sys/class/infiniband_verbs"};

	for (size_t i = 0; i < sizeof(hidden) / sizeof(*hidden); i++) {
		size_t n = strlen(hidden[i]);

		if (strncmp(path, hidden[i], n) == 0 && (path[n] == '/' || path[n] == 0))
			return 1;
	}
	return 0;
}

/* Writes the path of the folder that a relative path begins at to room, and returns its length, or 0. */
static size_t begins_at(int at, char room[PATH_MAX])
{
	static void *known;
	ssize_t n, (*next)(const char *, char *, size_t);
	char link[32];

	if (at == AT_FDCWD)
		return getcwd(room, PATH_MAX) && *room == '/' ? strlen(room) : 0;
	*(void **)&next = next_of(&known, "readlink");
	sprintf(link, "/proc/self/fd/%d", at);
	n = next ? next(link, room, PATH_MAX - 1) : -1;
	return n > 0 && *room == '/' ? n : 0;
}

/* Returns the path to open in place of path: path itself or, for a file of an RDMA device, a path
 * in the folder "files", which it writes to room. A path that leads through a folder of such files to
 * another file comes without the detour, as the system may lack the folder. at is the descriptor of
 * the folder that a relative path begins at. */
__attribute__((noinline)) static const char *shown_of_hidden(int at, const char *path, char room[PATH_MAX])
{
	char whole[2 * PATH_MAX + 2];
	int error = errno, detour = 0;
	size_t n = 0;

	if (strlen(path) >= PATH_MAX)
		return path;
	pthread_once(&located, locate);
	if (*path != '/')
		n = begins_at(at, whole);
	errno = error;
	if (!*files || (*path != '/' && n == 0))
		return path;
	for (const char *p = path, *end; *p; p = end) {
		p += strspn(p, "/");
		end = p + strcspn(p, "/");
		if (end == p || (end - p == 1 && *p == '.'))
			continue;
		if (end - p == 2 && strncmp(p, "..", 2) == 0) {
			whole[n] = 0;
			detour |= is_hidden(whole);
			while (n > 0 && whole[--n] != '/')
				;
			continue;
		}
		whole[n++] = '/';
		memcpy(whole + n, p, end - p);
		n += end - p;
	}
	if (path[strlen(path) - 1] == '/')
		whole[n++] = '/';
	whole[n] = 0;
	if (is_hidden(whole))
		return snprintf(room, PATH_MAX, "%s%s", files, whole) < PATH_MAX ? room : path;
	return detour && snprintf(room, PATH_MAX, "%s", whole) < PATH_MAX ? room : path;
}

static const char *shown(int at, const char *path, char room[PATH_MAX])
{
	return may_be_hidden(path) ? shown_of_hidden(at, path, room) : path;
}

/* Reports whether the path is one in the folder "files". */
static int is_ours(const char *path)
{
	size_t n = strlen(files);

	return n && strncmp(path, files, n) == 0 && path[n] == '/';
}

/* Returns how to open a path of shown, or -1 with errno for a file that programs must not write: all
 * programs have the same files. Files in /dev are links to /dev/null, but no program adds one. */
static int flags_for(const char *path, int flags)
{
	if (!may_be_hidden(path) || !is_ours(path))
		return flags;
	if (strncmp(path + strlen(files), "/sys/", 5) == 0 && ((flags & O_ACCMODE) != O_RDONLY || flags & O_TRUNC)) {
		errno = EACCES;
		return -1;
	}
	return flags & ~O_CREAT;
}

/* Does the same for a stream. */
static int may_open(const char *path, const char *mode)
{
	if (!may_be_hidden(path) || !is_ours(path) || (*mode == 'r' && !strchr(mode, '+')))
		return 1;
	if (flags_for(path, O_RDWR) < 0)
		return 0;
	return *mode == 'r' || faccessat(AT_FDCWD, path, F_OK, 0) == 0;
}

/* Finds the function of that name when the program starts: finding it takes more stack than signal
 * handlers may have. */
#define NEXT(name)                                                                                                     \
	static void *next_##name;                                                                                      \
                                                                                                                       \
	__attribute__((constructor)) static void find_##name(void)                                                     \
	{                                                                                                              \
		next_of(&next_##name, #name);                                                                          \
	}

/* Defines a function that replaces the path and calls the function of the same name in libc. If this
 * version of libc has no such function, it returns failed. */
#define PASS_IF(type, failed, name, at, path, parameters, arguments, condition)                                        \
	NEXT(name)                                                                                                     \
	SHOWN type name parameters                                                                                     \
	{                                                                                                              \
		type(*next) parameters;                                                                                \
		char room[may_be_hidden(path) ? PATH_MAX : 1];                                                         \
                                                                                                                       \
		*(void **)&next = next_of(&next_##name, #name);                                                        \
		path = shown(at, path, room);                                                                          \
		return next && (condition) ? next arguments : failed;                                                  \
	}

#define PASS(type, failed, name, path, parameters, arguments)                                                          \
	PASS_IF(type, failed, name, AT_FDCWD, path, parameters, arguments, 1)
#define PASS_AT(type, failed, name, path, parameters, arguments)                                                       \
	PASS_IF(type, failed, name, at, path, parameters, arguments, 1)
#define PASS_STREAM(name, parameters, arguments)                                                                       \
	PASS_IF(FILE *, NULL, name, AT_FDCWD, path, parameters, arguments, may_open(path, mode))

/* Defines such a function whose last argument, mode, exists only with O_CREAT and O_TMPFILE. */
#define PASS_OPEN(name, at, parameters, arguments)                                                                     \
	NEXT(name)                                                                                                     \
	SHOWN int name parameters                                                                                      \
	{                                                                                                              \
		int(*next) parameters;                                                                                 \
		char room[may_be_hidden(path) ? PATH_MAX : 1];                                                         \
		mode_t mode = 0;                                                                                       \
		va_list rest;                                                                                          \
                                                                                                                       \
		if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {                                             \
			va_start(rest, flags);                                                                         \
			mode = va_arg(rest, mode_t);                                                                   \
			va_end(rest);                                                                                  \
		}                                                                                                      \
		*(void **)&next = next_of(&next_##name, #name);                                                        \
		path = shown(at, path, room);                                                                          \
		if (path)                                                                                              \
			flags = flags_for(path, flags);                                                                \
		return next && flags != -1 ? next arguments : -1;                                                      \
	}

struct stat64;
struct statx;

PASS_OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
PASS_OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
PASS_OPEN(openat, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))
PASS_OPEN(openat64, at, (int at, const char *path, int flags, ...), (at, path, flags, mode))
/* With _FORTIFY_SOURCE, the compiler calls these instead of open without a mode. */
PASS(int, -1, __open_2, path, (const char *path, int flags), (path, flags))
PASS(int, -1, __open64_2, path, (const char *path, int flags), (path, flags))
PASS_AT(int, -1, __openat_2, path, (int at, const char *path, int flags), (at, path, flags))
PASS_AT(int, -1, __openat64_2, path, (int at, const char *path, int flags), (at, path, flags))

PASS_STREAM(fopen, (const char *path, const char *mode), (path, mode))
PASS_STREAM(fopen64, (const char *path, const char *mode), (path, mode))
PASS_STREAM(freopen, (const char *path, const char *mode, FILE *f), (path, mode, f))
PASS_STREAM(freopen64, (const char *path, const char *mode, FILE *f), (path, mode, f))

PASS(int, -1, stat, path, (const char *path, struct stat *s), (path, s))
PASS(int, -1, stat64, path, (const char *path, struct stat64 *s), (path, s))
PASS(int, -1, lstat, path, (const char *path, struct stat *s), (path, s))
PASS(int, -1, lstat64, path, (const char *path, struct stat64 *s), (path, s))
PASS_AT(int, -1, fstatat, path, (int at, const char *path, struct stat *s, int flags), (at, path, s, flags))
PASS_AT(int, -1, fstatat64, path, (int at, const char *path, struct stat64 *s, int flags), (at, path, s, flags))
PASS_AT(int, -1, statx, path, (int at, const char *path, int flags, unsigned mask, struct statx *s), (at, path, flags, mask, s))
/* Programs that were linked with glibc before 2.33 call these instead of stat. */
PASS(int, -1, __xstat, path, (int version, const char *path, struct stat *s), (version, path, s))
PASS(int, -1, __xstat64, path, (int version, const char *path, struct stat64 *s), (version, path, s))
PASS(int, -1, __lxstat, path, (int version, const char *path, struct stat *s), (version, path, s))
PASS(int, -1, __lxstat64, path, (int version, const char *path, struct stat64 *s), (version, path, s))
PASS_AT(int, -1, __fxstatat, path, (int version, int at, const char *path, struct stat *s, int flags), (version, at, path, s, flags))
PASS_AT(int, -1, __fxstatat64, path, (int version, int at, const char *path, struct stat64 *s, int flags),
     (version, at, path, s, flags))

PASS(int, -1, access, path, (const char *path, int mode), (path, mode))
PASS(int, -1, euidaccess, path, (const char *path, int mode), (path, mode))
PASS(int, -1, eaccess, path, (const char *path, int mode), (path, mode))
PASS_AT(int, -1, faccessat, path, (int at, const char *path, int mode, int flags), (at, path, mode, flags))

PASS(DIR *, NULL, opendir, path, (const char *path), (path))
PASS(int, -1, scandir, path,
     (const char *path, struct dirent ***list, int (*filter)(const struct dirent *),
      int (*compare)(const struct dirent **, const struct dirent **)),
     (path, list, filter, compare))
PASS(int, -1, scandir64, path,
     (const char *path, struct dirent64 ***list, int (*filter)(const struct dirent64 *),
      int (*compare)(const struct dirent64 **, const struct dirent64 **)),
     (path, list, filter, compare))
PASS_AT(int, -1, scandirat, path,
	(int at, const char *path, struct dirent ***list, int (*filter)(const struct dirent *),
	 int (*compare)(const struct dirent **, const struct dirent **)),
	(at, path, list, filter, compare))
PASS_AT(int, -1, scandirat64, path,
	(int at, const char *path, struct dirent64 ***list, int (*filter)(const struct dirent64 *),
	 int (*compare)(const struct dirent64 **, const struct dirent64 **)),
	(at, path, list, filter, compare))
PASS(ssize_t, -1, readlink, path, (const char *path, char *to, size_t size), (path, to, size))
PASS_AT(ssize_t, -1, readlinkat, path, (int at, const char *path, char *to, size_t size), (at, path, to, size))
PASS(ssize_t, -1, __readlink_chk, path, (const char *path, char *to, size_t size, size_t room_of_to), (path, to, size, room_of_to))
PASS_AT(ssize_t, -1, __readlinkat_chk, path, (int at, const char *path, char *to, size_t size, size_t room_of_to),
	(at, path, to, size, room_of_to))
PASS(char *, NULL, realpath, path, (const char *path, char *to), (path, to))
PASS(char *, NULL, __realpath_chk, path, (const char *path, char *to, size_t size), (path, to, size))
PASS(char *, NULL, canonicalize_file_name, path, (const char *path), (path))
PASS(int, -1, chdir, path, (const char *path), (path))
PASS(ssize_t, -1, getxattr, path, (const char *path, const char *name, void *value, size_t size), (path, name, value, size))
PASS(ssize_t, -1, lgetxattr, path, (const char *path, const char *name, void *value, size_t size), (path, name, value, size))
PASS(ssize_t, -1, listxattr, path, (const char *path, char *list, size_t size), (path, list, size))
PASS(ssize_t, -1, llistxattr, path, (const char *path, char *list, size_t size), (path, list, size))
struct statfs;
struct statfs64;
struct statvfs;
struct statvfs64;
PASS(int, -1, statfs, path, (const char *path, struct statfs *s), (path, s))
PASS(int, -1, statfs64, path, (const char *path, struct statfs64 *s), (path, s))
PASS(int, -1, statvfs, path, (const char *path, struct statvfs *s), (path, s))
PASS(int, -1, statvfs64, path, (const char *path, struct statvfs64 *s), (path, s))
PASS(long, -1, pathconf, path, (const char *path, int name), (path, name))
PASS(int, -1, inotify_add_watch, path, (int fd, const char *path, uint32_t mask), (fd, path, mask))

/* Takes the folder "files" from the front of a path that libc has made. */
static const char *without_folder(const char *path)
{
	return is_ours(path) ? path + strlen(files) : path;
}

/* Writes a pattern in which each character of the folder "files" stands for itself. */
__attribute__((noinline)) static const char *shown_pattern(const char *pattern, int flags, char room[2 * PATH_MAX])
{
	char path[PATH_MAX], *to = room;
	const char *p = shown(AT_FDCWD, pattern, path);

	if (p != path || !is_ours(path))
		return pattern;
	for (; p - path < (ptrdiff_t)strlen(files); *to++ = *p++)
		if (!(flags & GLOB_NOESCAPE) && strchr("*?[\\", *p))
			*to++ = '\\';
	strcpy(to, p);
	return room;
}

/* The paths of the result are those of the pattern, not those of this library's files. */
#define PASS_GLOB(name, result)                                                                                        \
	NEXT(name)                                                                                                     \
	SHOWN int name(const char *pattern, int flags, int (*failed)(const char *, int), result *all)                  \
	{                                                                                                              \
		int r, (*next)(const char *, int, int (*)(const char *, int), result *);                               \
		char room[may_be_hidden(pattern) ? 2 * PATH_MAX : 1];                                                  \
		const char *p = may_be_hidden(pattern) ? shown_pattern(pattern, flags, room) : pattern;                \
                                                                                                                       \
		*(void **)&next = next_of(&next_##name, #name);                                                        \
		r = next ? next(p, flags, failed, all) : GLOB_ABORTED;                                                 \
		if (r == 0 && p == room)                                                                               \
			for (size_t i = 0; i < all->gl_pathc; i++) {                                                   \
				char *path = all->gl_pathv[i + (flags & GLOB_DOOFFS ? all->gl_offs : 0)];              \
				const char *rest = without_folder(path);                                               \
                                                                                                                       \
				memmove(path, rest, strlen(rest) + 1);                                                 \
			}                                                                                              \
		return r;                                                                                              \
	}

PASS_GLOB(glob, glob_t)
PASS_GLOB(glob64, glob64_t)

/* So are the paths that a program's function gets from ftw and nftw. PASS_TREE defines one of these for
 * functions of the program with the parameters of that of visited. */
#define PASS_TREE(name, visited, parameters, arguments)                                                                \
	NEXT(name)                                                                                                     \
	SHOWN int name parameters                                                                                      \
	{                                                                                                              \
		typeof(visit) before = visited##_for;                                                                  \
		int r, (*next) parameters;                                                                             \
		char room[may_be_hidden(path) ? PATH_MAX : 1];                                                         \
		const char *asked = path;                                                                              \
                                                                                                                       \
		*(void **)&next = next_of(&next_##name, #name);                                                        \
		path = shown(AT_FDCWD, path, room);                                                                    \
		if (!next || path == asked)                                                                            \
			return next ? next arguments : -1;                                                             \
		visited##_for = visit;                                                                                 \
		visit = visited;                                                                                       \
		r = next arguments;                                                                                    \
		visited##_for = before;                                                                                \
		return r;                                                                                              \
	}

#define VISITED(visited, stat)                                                                                         \
	static __thread int (*visited##_for)(const char *, const struct stat *, int);                                  \
                                                                                                                       \
	static int visited(const char *path, const struct stat *s, int kind)                                           \
	{                                                                                                              \
		return visited##_for(without_folder(path), s, kind);                                                   \
	}

#define NEW_VISITED(visited, stat)                                                                                     \
	static __thread int (*visited##_for)(const char *, const struct stat *, int, struct FTW *);                    \
                                                                                                                       \
	static int visited(const char *path, const struct stat *s, int kind, struct FTW *f)                            \
	{                                                                                                              \
		const char *rest = without_folder(path);                                                               \
		struct FTW there = {f->base - (rest - path), f->level};                                                \
                                                                                                                       \
		return visited##_for(rest, s, kind, &there);                                                           \
	}

VISITED(visited, stat)
VISITED(visited64, stat64)
NEW_VISITED(new_visited, stat)
NEW_VISITED(new_visited64, stat64)
PASS_TREE(ftw, visited, (const char *path, int (*visit)(const char *, const struct stat *, int), int fds), (path, visit, fds))
PASS_TREE(ftw64, visited64, (const char *path, int (*visit)(const char *, const struct stat64 *, int), int fds), (path, visit, fds))
PASS_TREE(nftw, new_visited,
	  (const char *path, int (*visit)(const char *, const struct stat *, int, struct FTW *), int fds, int flags),
	  (path, visit, fds, flags))
PASS_TREE(nftw64, new_visited64,
	  (const char *path, int (*visit)(const char *, const struct stat64 *, int, struct FTW *), int fds, int flags),
	  (path, visit, fds, flags))
