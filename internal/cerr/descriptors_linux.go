// SPDX-License-Identifier: Apache-2.0

package cerr

import "syscall"

// mostCounted limits the number of descriptors that countDescriptors checks.
const mostCounted = 1 << 20

// descriptors returns the number of descriptors that this process has open, and
// their limit. ok is false if they are not known. It opens no descriptor, as
// none may be left.
func descriptors() (open, most int, ok bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, 0, false
	}
	most = int(min(limit.Cur, 1<<30))
	var stat syscall.Stat_t
	if err := syscall.Stat("/proc/self/fd", &stat); err == nil && stat.Size > 0 { // since Linux 6.2
		return min(int(stat.Size), most), most, true // open may exceed most, if the limit was lowered later
	}
	return countDescriptors(min(most, mostCounted)), most, true
}

// countDescriptors returns the number of open descriptors below most.
func countDescriptors(most int) (open int) {
	for fd := range most {
		if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_GETFD, 0); errno == 0 {
			open++
		}
	}
	return open
}
