package cluster

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
)

// shellcheck is ShellCheck of Debian 12. It is written in Haskell, so no Go module has it. The libraries that it needs
// are those of apt, and it runs on any later Debian or Ubuntu.
var shellcheck = map[string]pin{
	"amd64": {"8c40f8a4ecccf3d746b933853972f1cd1be6df84fc5977d0137269d4debefa4f",
		"pool/main/s/shellcheck/shellcheck_0.9.0-1_amd64.deb"},
	"arm64": {"5336357097400b170dcaf5633951b8f46264456b4d6f88ea748130114882e587",
		"pool/main/s/shellcheck/shellcheck_0.9.0-1_arm64.deb"},
}

// DownloadShellCheck downloads shellcheck into bin. On an architecture without a pinned one it does nothing.
func (c *Cluster) DownloadShellCheck(ctx context.Context) error {
	pinned, ok := shellcheck[runtime.GOARCH]
	if !ok {
		return nil
	}
	mirror, err := debianMirror(ctx)
	if err != nil {
		return err
	}
	dir := c.images("shellcheck")
	defer os.RemoveAll(dir)
	if err := c.unpack(ctx, mirror, []pin{pinned}, dir); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "usr/bin/shellcheck"), filepath.Join(c.bin, "shellcheck"))
}
