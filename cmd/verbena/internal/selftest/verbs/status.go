// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"syscall"

	"github.com/verbena-go/verbena/cmd/verbena/internal/selftest/check"
	"github.com/verbena-go/verbena/ibverbs"
)

// names has the names of statuses in package ibverbs.
var names = map[ibverbs.WCStatus]string{
	ibverbs.WCSuccess:              check.Succeeds,
	ibverbs.WCLocalLength:          "WCLocalLength",
	ibverbs.WCLocalQPOperation:     "WCLocalQPOperation",
	ibverbs.WCLocalProtection:      "WCLocalProtection",
	ibverbs.WCFlushed:              "WCFlushed",
	ibverbs.WCMemoryWindowBind:     "WCMemoryWindowBind",
	ibverbs.WCBadResponse:          "WCBadResponse",
	ibverbs.WCLocalAccess:          "WCLocalAccess",
	ibverbs.WCRemoteInvalidRequest: "WCRemoteInvalidRequest",
	ibverbs.WCRemoteAccess:         "WCRemoteAccess",
	ibverbs.WCRemoteOperation:      "WCRemoteOperation",
	ibverbs.WCRetryExceeded:        "WCRetryExceeded",
	ibverbs.WCRNRRetryExceeded:     "WCRNRRetryExceeded",
	ibverbs.WCRemoteAborted:        "WCRemoteAborted",
	ibverbs.WCFatal:                "WCFatal",
	ibverbs.WCResponseTimeout:      "WCResponseTimeout",
	ibverbs.WCGeneral:              "WCGeneral",
}

// statusName returns the name of a status.
func statusName(s ibverbs.WCStatus) string {
	if n := names[s]; n != "" {
		return n
	}
	return s.String()
}

// spec returns the verdict that all devices have which keep to the
// specification.
func spec(status ibverbs.WCStatus) check.Verdict {
	return check.Verdict{Specification: []string{statusName(status)}}
}

// rxe returns the verdict with what Soft-RoCE has instead. Since Linux 6.4 it
// may be another: what Soft-RoCE cannot send, it flushes with the requests
// behind it.
func rxe(v check.Verdict, statuses ...ibverbs.WCStatus) check.Verdict {
	for _, s := range statuses {
		v.SoftRoCE = append(v.SoftRoCE, statusName(s))
	}
	return v
}

// The verdicts of most cases.
var (
	good            = spec(ibverbs.WCSuccess)
	remoteAccess    = spec(ibverbs.WCRemoteAccess)
	localProtection = spec(ibverbs.WCLocalProtection) // of memory that the device writes
	noAnswer        = spec(ibverbs.WCRetryExceeded)

	// unsendable is of memory that the device reads.
	unsendable = rxe(localProtection, ibverbs.WCLocalQPOperation, ibverbs.WCFlushed)
)

// errnos has the names of errors that calls return.
var errnos = []struct {
	err  error
	name string
}{
	{syscall.EINVAL, "EINVAL"},
	{syscall.ENOMEM, "ENOMEM"},
	{syscall.EFAULT, "EFAULT"},
	{syscall.EPERM, "EPERM"},
	{syscall.ENOSPC, "ENOSPC"},
	{syscall.ENOENT, "ENOENT"},
	{syscall.EBADF, "EBADF"},
	{syscall.EBUSY, "EBUSY"},
	{syscall.EACCES, "EACCES"},
	{syscall.EIO, "EIO"},
	{syscall.EAGAIN, "EAGAIN"},
	{errors.ErrUnsupported, "EOPNOTSUPP"},
}

// errno returns the name of an error that a call has returned.
func errno(err error) string {
	if err == nil {
		return check.Succeeds
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.name
		}
	}
	return err.Error()
}

// refusal returns the verdict of calls that return one of these errors.
func refusal(names ...string) check.Verdict { return check.Verdict{Specification: names} }
