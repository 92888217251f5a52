// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package capi

import (
	"strconv"
	"syscall"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/softroce/internal/engine"
)

// xrcd is an XRC domain as a program holds it. Several of them stand for the
// same domain if they were opened with the same file.
type xrcd struct {
	c      *libibverbs.Xrcd
	domain *xrcDomain
	users  int // number of queue pairs and shared receive queues that were created or opened with it
}

// xrcDomain is an XRC domain.
type xrcDomain struct {
	e       *engine.XRCD
	file    xrcFile // zero without a file
	release func()  // gives the file up and closes it; nil without a file
	opened  int     // number of xrcds
	exempt  bool    // whether its receives are exempt from the check of memory
}

// xrcFile names the domain that a file stands for.
type xrcFile struct {
	device     *engine.Device
	dev, inode uint64
}

func init() {
	verbs.OpenXrcd = func(c *libibverbs.Context, a *libibverbs.XrcdInitAttr) (*libibverbs.Xrcd, syscall.Errno) {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.openXRCD(c, a)
	}
	verbs.CloseXrcd = func(c *libibverbs.Xrcd) syscall.Errno {
		l := self()
		l.Lock()
		defer l.Unlock()
		return l.closeXRCD(c)
	}
}

// openXRCD opens the domain of the file a.Fd, or creates one. The errors for
// files are those of Linux. A domain that another process has opened is on
// another device, and cannot be shared: openXRCD fails with EOPNOTSUPP.
func (l *library) openXRCD(c *libibverbs.Context, a *libibverbs.XrcdInitAttr) (*libibverbs.Xrcd, syscall.Errno) {
	device := l.deviceOf(c)
	if device == nil || a == nil {
		return nil, syscall.EINVAL
	}
	mask, fd, flags := a.CompMask, int(a.Fd), a.Oflags // which the program may change meanwhile
	const needed = libibverbs.IBV_XRCD_INIT_ATTR_FD | libibverbs.IBV_XRCD_INIT_ATTR_OFLAGS
	switch {
	case mask&^needed != 0:
		return nil, syscall.EOPNOTSUPP
	case mask != needed:
		return nil, syscall.EINVAL
	}
	var file xrcFile
	var domain *xrcDomain
	if fd != -1 {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil {
			return nil, errno(err)
		}
		file = xrcFile{device, uint64(stat.Dev), stat.Ino}
		domain = l.xrcFiles[file]
		switch {
		case domain == nil && flags&syscall.O_CREAT == 0:
			return nil, syscall.EAGAIN
		case domain != nil && flags&syscall.O_EXCL != 0:
			return nil, syscall.EINVAL
		}
	}
	if domain == nil {
		var err error
		if domain, err = l.createXRCDomain(device, file, fd); err != nil {
			return nil, errno(err)
		}
	}
	domain.opened++
	x := &xrcd{c: alloc[libibverbs.Xrcd](), domain: domain}
	x.c.Context = c
	l.xrcds[x.c] = x
	return x.c, 0
}

const pathOnly = 0x200000 // O_PATH

// createXRCDomain creates a domain, which the file of the descriptor fd names
// unless file is zero. The domain keeps a descriptor of that file: the file
// system must not give its inode to another file after the program has removed
// the file. The descriptor cannot read or write: to close such a descriptor
// leaves the locks alone that the program has on the file by fcntl(2), which
// the close of any other descriptor of the file ends.
func (l *library) createXRCDomain(device *engine.Device, file xrcFile, fd int) (*xrcDomain, error) {
	e, err := device.CreateXRCD()
	if err != nil {
		return nil, err
	}
	domain := &xrcDomain{e: e, file: file}
	if file.device == nil {
		return domain, nil
	}
	own, err := syscall.Open("/proc/thread-self/fd/"+strconv.Itoa(fd), pathOnly|syscall.O_CLOEXEC, 0)
	if err != nil {
		e.Destroy()
		return nil, err
	}
	giveUp, err := l.ClaimFile(file.dev, file.inode)
	if err != nil {
		syscall.Close(own)
		e.Destroy()
		if err == syscall.EADDRINUSE {
			err = syscall.EOPNOTSUPP
		}
		return nil, err
	}
	domain.release = func() {
		giveUp()
		syscall.Close(own)
	}
	l.xrcFiles[file] = domain
	return domain, nil
}

func (l *library) closeXRCD(c *libibverbs.Xrcd) syscall.Errno {
	x := l.xrcds[c]
	switch {
	case x == nil:
		return syscall.EINVAL
	case x.users > 0:
		return syscall.EBUSY
	}
	d := x.domain
	d.opened--
	if d.opened == 0 {
		d.e.Destroy() // its objects were created with an xrcd that was open
		if d.release != nil {
			delete(l.xrcFiles, d.file)
			d.release()
		}
	}
	delete(l.xrcds, c)
	free(c)
	return 0
}
