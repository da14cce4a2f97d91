-- Marks of manual pages that Pandoc's writer has none of: what is typed is bold, links are their text.
local function bold(text) return pandoc.Strong(pandoc.Str(text)) end

function Code(code) return bold(code.text) end

function Link(link) return link.content end

-- A page, such as hadard(8), or an option in running text.
function Str(word)
  for _, form in ipairs({ "^(%(?)([%a][%w.-]*)(%([158]%).*)$", "^(%(?)(%-%-[%a-]*%a)(.*)$" }) do
    local before, name, after = word.text:match(form)
    if name then return { pandoc.Str(before), bold(name), pandoc.Str(after) } end
  end
end
