-- Wakes hadard when a job is submitted or changed, so that a round begins at once, and lets users opt
-- out of enrolment (`enrol` in hadar.yaml) by their environment: a batch job submitted with HADAR=no
-- gets the word no-hadar in its comment. It changes nothing else and rejects nothing: what it returns
-- is what the site's own functions return, or slurm.SUCCESS.
--
-- A site without a job_submit.lua: this file beside slurm.conf, and in slurm.conf
--     JobSubmitPlugins=lua
-- A site with one of its own: in its last line but `return slurm.SUCCESS`
--     pcall(dofile, "/usr/share/hadar-slurm/job_submit.lua")
-- or wherever this file lies. If it is missing or broken, all is as if the line were not there.

local WAKE_FILE = "/run/hadar/wake"
local OPT_OUT = "no-hadar"
local MOST = 1024  -- of a comment that hadard and accounting keep whole

-- Append a byte. Whatever goes wrong here must not keep a job from being submitted.
local function wake_hadard()
    pcall(function()
        local file = io.open(WAKE_FILE, "r+")  -- only a file that hadard has made
        if file then
            file:seek("end")
            file:write(".")
            file:close()
        end
    end)
end

-- Of jobs without a script Slurm has no environment here, and logs an error if asked for it.
local function opt_out(job_desc)
    pcall(function()
        if job_desc.script == nil or job_desc.environment["HADAR"] ~= "no" then
            return
        end
        local comment = job_desc.comment or ""
        -- hadar-sbatch writes both, and heeds HADAR itself.
        local is_ours = comment:sub(1, 1) == "{" or comment:find(OPT_OUT, 1, true)
        if not is_ours and #comment + #OPT_OUT < MOST then
            job_desc.comment = comment == "" and OPT_OUT or comment .. " " .. OPT_OUT
        end
    end)
end

-- The functions that a site has defined before this file was loaded; nil where there are none.
local site_submit, site_modify = slurm_job_submit, slurm_job_modify

function slurm_job_submit(...)
    wake_hadard()
    opt_out((...))
    if site_submit then
        return site_submit(...)  -- its answers and its errors stay its own
    end
    return slurm.SUCCESS
end

function slurm_job_modify(...)
    wake_hadard()
    if site_modify then
        return site_modify(...)
    end
    return slurm.SUCCESS
end

return slurm.SUCCESS
