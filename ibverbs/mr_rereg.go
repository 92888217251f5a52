package ibverbs

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/verbena-go/verbena/generated/libibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// ReregError is a failed Rereg.
type ReregError struct {
	// Object is the memory region.
	Object string
	// Code says which step failed. It is one of IBV_REREG_MR_ERR_INPUT and the
	// others of ibv_rereg_mr(3).
	Code int
	// Errno says why.
	Errno syscall.Errno
}

// Unusable reports whether the region can only be closed now.
func (e *ReregError) Unusable() bool { return (*cerr.ReregError)(e).Unusable() }

// Error returns the region, the errno's text, and the step that failed.
func (e *ReregError) Error() string { return (*cerr.ReregError)(e).Error() }

// Unwrap returns Errno, so that errors.Is and errors.As find it.
func (e *ReregError) Unwrap() error { return e.Errno }

// ReregConfig says what to change of a memory region. What is nil stays.
type ReregConfig struct {
	PD     *PD          // of the same open device
	Access *AccessFlags // all of them, not only those that change
	Memory []byte       // of the caller's, as in Register; its address is that of work requests
}

// Rereg changes a region over this process's memory in place, which can be
// cheaper than to close it and make another; see ibv_rereg_mr(3). The keys may
// change. No request may use the region meanwhile, nor Segments made before of
// a region that then has other memory. Old memory is given back, as Close
// does.
//
// An error that is a *ReregError may leave the region unusable, which it then
// is for everything but Close, or, with IBV_REREG_MR_ERR_DO_FORK_OLD as Code,
// changed as asked for. After any other error it is as it was. A device that
// cannot change regions gives errors.ErrUnsupported.
func (mr *MR) Rereg(config ReregConfig) error {
	if err := mr.self().Use(); err != nil {
		return err
	}
	defer mr.object.Done()
	mr.mu.Lock()
	defer mr.mu.Unlock()
	if config.PD != nil {
		if err := config.PD.self().Use(); err != nil {
			return err
		}
		defer config.PD.object.Done()
	}
	if err := mr.checkRereg(config); err != nil {
		return err
	}
	return mr.rereg(config)
}

const opRereg = "ibv_rereg_mr"

func (mr *MR) checkRereg(config ReregConfig) error {
	problem := ""
	switch {
	case mr.usable() != nil:
		return cerr.Argument(opRereg, mr.object.Name(), mr.usable())
	case mr.bytes == nil:
		problem = "the region is not memory of this process"
	case config.PD == nil && config.Access == nil && config.Memory == nil:
		problem = "nothing to change"
	case config.Memory != nil && len(config.Memory) == 0:
		problem = "Memory is empty"
	case config.PD != nil && config.PD.device.raw != mr.pd.device.raw:
		return otherDevice(opRereg, mr.object.Name(), config.PD.self())
	case config.Access != nil && *config.Access&AccessZeroBased != 0:
		problem = "AccessZeroBased cannot be changed"
	case config.Access != nil && accessProblem(*config.Access) != "":
		problem = accessProblem(*config.Access)
	default:
		return nil
	}
	return cerr.Refuse(opRereg, mr.object.Name(), "%s", problem)
}

func (mr *MR) rereg(config ReregConfig) error {
	var flags libibverbs.ReregMrFlags
	var rawPD *libibverbs.Pd
	var access AccessFlags
	next, giveBack := mr.region, func() {}
	if config.PD != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_PD
		rawPD, next.pd = config.PD.raw, config.PD
		mr.object.AddParent(&config.PD.object)
	}
	if config.Access != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_ACCESS
		access, next.access = *config.Access, *config.Access
		next.readOnly = access&AccessLocalWrite == 0
	}
	if config.Memory != nil {
		flags |= libibverbs.IBV_REREG_MR_CHANGE_TRANSLATION
		next.bytes, next.start, next.size = config.Memory, addressOf(config.Memory), len(config.Memory)
		next.release, giveBack = pin(config.Memory), mr.release
	}
	err := libibverbs.ReregMr(mr.raw, int32(flags), rawPD,
		unsafe.Pointer(unsafe.SliceData(config.Memory)), uint64(len(config.Memory)), int32(access))
	err = wrap(mr.object.Name(), err)
	var failure *ReregError
	switch {
	case err == nil || errors.As(err, &failure) && failure.Code == int(libibverbs.IBV_REREG_MR_ERR_DO_FORK_OLD):
		previous := mr.pd
		mr.region = next
		mr.lkey, mr.rkey = mr.raw.Lkey, mr.raw.Rkey
		if next.pd != previous {
			mr.object.RemoveParent(&previous.object)
		}
		giveBack()
	case failure != nil && failure.Unusable():
		// Nobody knows whose it is and which memory the device still uses.
		mr.unusable.Store(true)
		if config.Memory != nil {
			mr.release = func() { giveBack(); next.release() }
		}
	default:
		if config.Memory != nil {
			next.release()
		}
		if next.pd != mr.pd {
			mr.object.RemoveParent(&next.pd.object)
		}
	}
	return err
}
