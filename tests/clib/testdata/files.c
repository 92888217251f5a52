// SPDX-License-Identifier: Apache-2.0

/* Looks at the files of RDMA devices in each way that libc has, and exits with the line of the first one that fails. */

#define _GNU_SOURCE

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#define DEVICE "/sys/class/infiniband/soft0"
#define STATE DEVICE "/ports/1/state"
#define TEXT "4: ACTIVE\n"
#define FILE_OF_DEVICE "/dev/infiniband/uverbs0"

/* gcc's sanitizers read paths where this flag makes room. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define OFFS 0
#else
#define OFFS GLOB_DOOFFS
#endif

#define CHECK(c)                                                                                                       \
	do {                                                                                                           \
		if (!(c)) {                                                                                            \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #c, strerror(errno));                           \
			return 1;                                                                                      \
		}                                                                                                      \
	} while (0)

static int holds(int fd)
{
	char text[64] = "";

	return fd >= 0 && read(fd, text, sizeof(text)) == strlen(TEXT) && strcmp(text, TEXT) == 0 && close(fd) == 0;
}

static int streams(FILE *f)
{
	char text[64] = "";

	return f && fgets(text, sizeof(text), f) && strcmp(text, TEXT) == 0 && fclose(f) == 0;
}

static int visited; /* times that a function has got the path of STATE */

static int visit(const char *path, const struct stat *s, int kind)
{
	visited += strcmp(path, STATE) == 0;
	return strncmp(path, DEVICE, strlen(DEVICE)) != 0;
}

static int visit64(const char *path, const struct stat64 *s, int kind)
{
	return visit(path, NULL, kind);
}

static int new_visit(const char *path, const struct stat *s, int kind, struct FTW *f)
{
	if (strcmp(path, STATE) == 0 && strcmp(path + f->base, "state") != 0)
		return 1;
	return visit(path, s, kind);
}

static int new_visit64(const char *path, const struct stat64 *s, int kind, struct FTW *f)
{
	return new_visit(path, NULL, kind, f);
}

int main(int argc, char **argv)
{
	glob_t found = {0};
	glob64_t found64 = {0};
	struct statfs fs;
	struct statfs64 fs64;
	struct statvfs vfs;
	struct statvfs64 vfs64;
	struct stat s;
	struct stat64 s64;
	struct statx sx;
	struct dirent **names, *d;
	struct dirent64 **names64;
	char room[PATH_MAX], longest[2 * PATH_MAX], *p;
	const char *own = argv[1]; /* a folder */
	int fd, flags = argc > 2 ? O_CLOEXEC : 0 /* which the compiler does not know */;
	DIR *dir;

	CHECK(holds(open(STATE, O_RDONLY)));
	CHECK(holds(open64(STATE, O_RDONLY)));
	CHECK(holds(openat(AT_FDCWD, STATE, O_RDONLY)));
	CHECK(holds(openat64(AT_FDCWD, STATE, O_RDONLY)));
	CHECK(holds(open(STATE, flags)));
	CHECK(holds(open64(STATE, flags)));
	CHECK(holds(openat(AT_FDCWD, STATE, flags)));
	CHECK(holds(openat64(AT_FDCWD, STATE, flags)));
	CHECK(streams(fopen(STATE, "r")));
	CHECK(streams(fopen64(STATE, "r")));
	CHECK(streams(freopen(STATE, "r", fopen("/dev/null", "r"))));
	CHECK(streams(freopen64(STATE, "r", fopen("/dev/null", "r"))));

	CHECK(stat(FILE_OF_DEVICE, &s) == 0 && S_ISCHR(s.st_mode));
	CHECK(stat64(FILE_OF_DEVICE, &s64) == 0 && S_ISCHR(s64.st_mode));
	CHECK(lstat(STATE, &s) == 0 && s.st_size == strlen(TEXT));
	CHECK(lstat64(STATE, &s64) == 0 && s64.st_size == strlen(TEXT));
	CHECK(fstatat(AT_FDCWD, STATE, &s, 0) == 0 && s.st_size == strlen(TEXT));
	CHECK(fstatat64(AT_FDCWD, STATE, &s64, 0) == 0 && s64.st_size == strlen(TEXT));
	CHECK(statx(AT_FDCWD, STATE, 0, STATX_SIZE, &sx) == 0 && sx.stx_size == strlen(TEXT));
	CHECK(access(FILE_OF_DEVICE, R_OK | W_OK) == 0);
	CHECK(euidaccess(FILE_OF_DEVICE, R_OK | W_OK) == 0);
	CHECK(eaccess(FILE_OF_DEVICE, R_OK | W_OK) == 0);
	CHECK(faccessat(AT_FDCWD, FILE_OF_DEVICE, R_OK | W_OK, 0) == 0);
	CHECK(getxattr(STATE, "user.none", NULL, 0) == -1 && errno != ENOENT);
	CHECK(lgetxattr(STATE, "user.none", NULL, 0) == -1 && errno != ENOENT);
	CHECK(listxattr(STATE, NULL, 0) >= 0);
	CHECK(llistxattr(STATE, NULL, 0) >= 0);

	CHECK((dir = opendir("/sys/class/infiniband")));
	do
		CHECK((d = readdir(dir)));
	while (strcmp(d->d_name, "soft0") != 0);
	CHECK(scandir("/sys/class/infiniband", &names, NULL, alphasort) == 3 && strcmp(names[2]->d_name, "soft0") == 0);
	CHECK(scandir64("/sys/class/infiniband_verbs", &names64, NULL, alphasort64) == 4);
	CHECK(strcmp(names64[3]->d_name, "uverbs0") == 0);
	CHECK(readlink(FILE_OF_DEVICE, room, sizeof(room)) == strlen("/dev/null"));
	CHECK(readlinkat(AT_FDCWD, FILE_OF_DEVICE, room, sizeof(room)) == strlen("/dev/null"));
	CHECK(realpath(FILE_OF_DEVICE, room) && strcmp(room, "/dev/null") == 0);
	CHECK((p = realpath(FILE_OF_DEVICE, NULL)) && strcmp(p, "/dev/null") == 0);
	CHECK((p = canonicalize_file_name(FILE_OF_DEVICE)) && strcmp(p, "/dev/null") == 0);
	CHECK(scandirat(AT_FDCWD, "/sys/class/infiniband", &names, NULL, alphasort) == 3);
	CHECK(scandirat64(AT_FDCWD, "/sys/class/infiniband", &names64, NULL, alphasort64) == 3);
	CHECK(glob("/dev/infiniband/*", 0, NULL, &found) == 0 && found.gl_pathc == 2);
	CHECK(strcmp(found.gl_pathv[0], "/dev/infiniband/rdma_cm") == 0 && strcmp(found.gl_pathv[1], FILE_OF_DEVICE) == 0);
	globfree(&found);
	found.gl_offs = OFFS ? 2 : 0;
	CHECK(glob("/dev/nul?", OFFS, NULL, &found) == 0);
	CHECK(glob("/sys/class/infiniband/*/ports/1/stat*", OFFS | GLOB_APPEND, NULL, &found) == 0 && found.gl_pathc == 2);
	CHECK(strcmp(found.gl_pathv[found.gl_offs], "/dev/null") == 0 && strcmp(found.gl_pathv[found.gl_offs + 1], STATE) == 0);
	globfree(&found);
	CHECK(glob64(DEVICE "/ports/1/stat*", 0, NULL, &found64) == 0 && strcmp(found64.gl_pathv[0], STATE) == 0);
	CHECK(glob64("/dev/infiniband/none*", 0, NULL, &found64) == GLOB_NOMATCH);
	CHECK(glob64("/dev/infiniband/none", GLOB_NOCHECK, NULL, &found64) == 0 && strcmp(found64.gl_pathv[0], "/dev/infiniband/none") == 0);
	CHECK(ftw(DEVICE, visit, 8) == 0 && visited == 1);
	CHECK(ftw64(DEVICE, visit64, 8) == 0 && visited == 2);
	CHECK(nftw(DEVICE, new_visit, 8, FTW_PHYS) == 0 && visited == 3);
	CHECK(nftw64(DEVICE, new_visit64, 8, FTW_PHYS) == 0 && visited == 4);
	CHECK(statfs(STATE, &fs) == 0 && statfs64(STATE, &fs64) == 0 && statvfs(STATE, &vfs) == 0 && statvfs64(STATE, &vfs64) == 0);
	CHECK(pathconf(STATE, _PC_NAME_MAX) > 0);
	CHECK(inotify_add_watch(inotify_init(), "/dev/infiniband", IN_CREATE) > 0);

	/* The same files have other paths, too. */
	CHECK(holds(open("//sys/./class//infiniband/soft0/../soft0/ports/1/state", O_RDONLY)));
	CHECK(holds(open("/sys/class/net/../infiniband/soft0/ports/1/state", O_RDONLY)));
	CHECK(open(STATE "/", O_RDONLY) == -1 && errno == ENOTDIR);
	CHECK(access("/sys/class/infiniband/../net", F_OK) == 0 && access("/dev/infiniband/../null", F_OK) == 0);
	CHECK((fd = open("/sys/class", O_RDONLY | O_DIRECTORY)) >= 0);
	CHECK(holds(openat(fd, "infiniband/soft0/ports/1/state", O_RDONLY)));
	CHECK(fstatat(fd, "infiniband_verbs/uverbs0", &s, 0) == 0 && S_ISDIR(s.st_mode));
	CHECK(chdir("/sys/class") == 0 && holds(open("infiniband/soft0/ports/1/state", O_RDONLY)));

	/* All programs have the same files, which no program changes. */
	CHECK(open(STATE, O_WRONLY | O_TRUNC) == -1 && errno == EACCES);
	CHECK(open(STATE, O_RDONLY | O_TRUNC) == -1 && errno == EACCES);
	CHECK(!fopen(STATE, "w") && errno == EACCES);
	CHECK(realpath(STATE, room) && open(room, O_WRONLY) == -1 && errno == EACCES);
	CHECK(!fopen(STATE, "r+") && errno == EACCES);
	CHECK(open("/dev/infiniband/new", O_WRONLY | O_CREAT, 0600) == -1 && errno == ENOENT);
	CHECK(!fopen("/dev/infiniband/new", "w") && errno == ENOENT);
	CHECK((fd = open(FILE_OF_DEVICE, O_RDWR | O_CLOEXEC)) >= 0 && write(fd, "x", 1) == 1);
	CHECK(streams(fopen(STATE, "r")));

	CHECK(chdir(DEVICE "/") == 0 && holds(open("ports/1/state", O_RDONLY)));

	/* Other paths, and those that are no paths, are libc's. */
	CHECK(open(DEVICE "/node_guid", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(open("/dev/infiniband0", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(stat("/dev/null", &s) == 0 && S_ISCHR(s.st_mode));
	memset(longest, 'x', sizeof(longest));
	longest[sizeof(longest) - 1] = 0;
	memcpy(longest, "/dev/infiniband/", strlen("/dev/infiniband/"));
	CHECK(open(longest, O_RDONLY) == -1 && errno == ENAMETOOLONG);
	CHECK(chdir(own) == 0);
	umask(0);
	CHECK((fd = open("made", O_CREAT | O_WRONLY | O_EXCL, 0640)) >= 0 && fstat(fd, &s) == 0 && (s.st_mode & 0777) == 0640);
	CHECK((fd = openat(AT_FDCWD, "made64", O_CREAT | O_WRONLY | O_EXCL, 0604)) >= 0 && fstat(fd, &s) == 0);
	CHECK((s.st_mode & 0777) == 0604);
	return 0;
}
